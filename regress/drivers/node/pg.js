// What a Node program does with a database, through node-postgres, pg-cursor and pg-query-stream. Connects with the
// PG* variables. Any failed expectation ends it with code 1 and says which.
'use strict'
const assert = require('node:assert/strict')
const { Client, Connection, Pool } = require('pg')
const Cursor = require('pg-cursor')
const QueryStream = require('pg-query-stream')
const { neki, replicaOptions, run, ssl } = require('./lib')

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

async function streaming(client) {
  const cursor = client.query(new Cursor('SELECT generate_series(1, $1::int) AS i', [1000]))
  assert.deepEqual((await cursor.read(10)).map(r => r.i), Array.from({ length: 10 }, (_, i) => i + 1))
  assert.equal((await cursor.read(10))[0].i, 11)
  await cursor.close()
  let seen = 0
  for await (const row of client.query(new QueryStream('SELECT generate_series(1, 1000) AS i', [], { batchSize: 100 }))) {
    assert.equal(row.i, ++seen)
  }
  assert.equal(seen, 1000)
  await client.query('BEGIN')
  const a = client.query(new Cursor('SELECT generate_series(1, 20) AS i', []))
  assert.equal((await a.read(5)).length, 5)
  await a.close()
  await client.query('COMMIT')
}

async function notifications(sender) {
  const listener = await connect()
  const came = new Promise(resolve => listener.once('notification', resolve))
  await listener.query('LISTEN drv_node')
  await sender.query("SELECT pg_notify('drv_node', $1)", ['hello'])
  assert.equal((await came).payload, 'hello')
  await listener.end()
}

// cancel sends a cancel request, on a connection of its own, for what the client runs.
function cancel({ processID, secretKey }) {
  return new Promise((resolve, reject) => {
    const con = new Connection({ ssl })
    con.on('error', reject)
    con.on('end', resolve)
    con.on('connect', () => ssl ? con.requestSsl() : con.cancel(processID, secretKey))
    con.on('sslconnect', () => con.cancel(processID, secretKey))
    con.connect(Number(process.env.PGPORT), process.env.PGHOST)
  })
}

async function timeout(client) {
  await client.query('BEGIN')
  await client.query('SET LOCAL statement_timeout = 50')
  await assert.rejects(client.query('SELECT pg_sleep(10)'), { code: '57014' })
  await client.query('ROLLBACK')
  const other = await connect()
  const slow = assert.rejects(other.query('SELECT pg_sleep(10)'), { code: '57014' })
  for (let done = false; !done;) { // a cancel may come before its statement
    await cancel(other)
    done = await Promise.race([slow.then(() => true), new Promise(resolve => setTimeout(resolve, 50, false))])
  }
  assert.equal((await other.query('SELECT 42 AS n')).rows[0].n, 42)
  await other.end()
}

async function replica() {
  const client = await connect(replicaOptions)
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

run(async () => {
  const client = await connect()
  await client.query('DROP TABLE IF EXISTS drv_node')
  await client.query('CREATE TABLE drv_node (id int PRIMARY KEY, v text, n numeric)')
  await client.query("INSERT INTO drv_node VALUES (1, 'one', 10), (2, 'two', 20)")
  await preparedStatements(client)
  await transactions(client)
  await streaming(client)
  await notifications(client)
  await timeout(client)
  if (neki) await replica()
  await manyAtOnce()
  await client.query('DROP TABLE drv_node')
  await client.end()
})
