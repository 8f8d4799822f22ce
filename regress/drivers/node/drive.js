// What a Node program does with a database, through node-postgres. Connects with the PG* variables; TLS by
// PGSSLMODE=verify-full and PGSSLROOTCERT. Any failed expectation ends it with code 1 and says which.
'use strict'
const assert = require('node:assert/strict')
const fs = require('node:fs')
const { Client, Pool } = require('pg')

const ssl = process.env.PGSSLMODE === 'disable' ? false : { ca: fs.readFileSync(process.env.PGSSLROOTCERT, 'utf8') }

async function connect(options) {
  const client = new Client({ ssl, options, connectionTimeoutMillis: 10000 })
  await client.connect()
  return client
}

async function preparedStatements(client) {
  const byId = { name: 'by-id', text: 'SELECT v, n FROM drv_node WHERE id = $1' }
  for (const [id, v] of [[1, 'one'], [2, 'two'], [1, 'one']]) {
    const { rows } = await client.query({ ...byId, values: [id] })
    assert.deepEqual(rows, [{ v, n: String(id) + '0' }])
  }
  const typed = await client.query('SELECT $1::int + 1 AS i, $2::text AS t, $3::jsonb AS j, $4::timestamptz AS at, $5::bytea AS b, NULL AS nothing',
    [41, 'täxt', { a: [1, 2] }, new Date(0), Buffer.from([0, 255])])
  assert.deepEqual(typed.rows[0], { i: 42, t: 'täxt', j: { a: [1, 2] }, at: new Date(0), b: Buffer.from([0, 255]), nothing: null })
}

async function transactions(client) {
  await client.query('BEGIN')
  await client.query('INSERT INTO drv_node VALUES ($1, $2, $3)', [3, 'gone', 30])
  await client.query('ROLLBACK')
  await client.query('BEGIN')
  await client.query('INSERT INTO drv_node VALUES ($1, $2, $3)', [4, 'kept', 40])
  await client.query('SAVEPOINT s')
  await assert.rejects(client.query('INSERT INTO drv_node VALUES ($1, $2, $3)', [4, 'twice', 40]),
    { code: '23505', table: 'drv_node', constraint: 'drv_node_pkey', detail: 'Key (id)=(4) already exists.' })
  await client.query('ROLLBACK TO s')
  await client.query('COMMIT')
  const { rows } = await client.query('SELECT id FROM drv_node ORDER BY id')
  assert.deepEqual(rows.map(r => r.id), [1, 2, 4])
}

async function replica() {
  const client = await connect('-c __neki.target=replica -c __neki.replica_consistency=bounded:30s')
  const { rows } = await client.query('SELECT pg_is_in_recovery() AS recovering')
  assert.deepEqual(rows, [{ recovering: true }])
  const named = { name: 'recovering', text: 'SELECT pg_is_in_recovery() AS recovering, $1::int AS i' }
  for (const i of [1, 2]) {
    assert.deepEqual((await client.query({ ...named, values: [i] })).rows, [{ recovering: true, i }])
  }
  await assert.rejects(client.query('INSERT INTO drv_node VALUES (9, $1, 9)', ['refused']), { code: '25006' })
  await client.query("SET __neki.target = 'primary'")
  assert.deepEqual((await client.query({ ...named, values: [3] })).rows, [{ recovering: false, i: 3 }])
  await client.end()
}

async function manyAtOnce() {
  const pool = new Pool({ ssl, max: 8 })
  const results = await Promise.all(Array.from({ length: 64 }, (_, i) =>
    pool.query({ name: 'echo', text: 'SELECT $1::int AS i' , values: [i] })))
  assert.deepEqual(results.map(r => r.rows[0].i), Array.from({ length: 64 }, (_, i) => i))
  await pool.end()
}

async function main() {
  const client = await connect()
  await client.query('DROP TABLE IF EXISTS drv_node')
  await client.query('CREATE TABLE drv_node (id int PRIMARY KEY, v text, n numeric)')
  await client.query("INSERT INTO drv_node VALUES (1, 'one', 10), (2, 'two', 20)")
  await preparedStatements(client)
  await transactions(client)
  if (process.argv[2] === 'neki') await replica()
  await manyAtOnce()
  await client.query('DROP TABLE drv_node')
  await client.end()
  console.log('node-postgres: all as expected')
}

main().catch(error => {
  console.error(error)
  process.exit(1)
})
