// What a Node program does with a database, through postgres.js, which pipelines what it can.
'use strict'
const assert = require('node:assert/strict')
const { Readable } = require('node:stream')
const { pipeline } = require('node:stream/promises')
const postgres = require('postgres')
const { fields, neki, run, ssl } = require('./lib')

const connect = (max, connection) => postgres({ ...fields, ssl, max, connection, connect_timeout: 10, onnotice: () => {} })

async function prepared(sql) {
  for (const [id, v] of [[1, 'one'], [2, 'two'], [1, 'one']]) {
    await sql.begin(async sql => assert.equal((await sql`SELECT v FROM drv_postgresjs WHERE id = ${id}`)[0].v, v))
  }
  assert.equal((await sql`SELECT ${{ a: [1, 2] }}::jsonb AS j`)[0].j.a[1], 2)
  const many = await Promise.all(Array.from({ length: 60 }, (_, i) => sql`SELECT ${i}::int AS i`))
  assert.deepEqual(many.map(rows => rows[0].i), Array.from({ length: 60 }, (_, i) => i))
  assert.equal((await sql.unsafe('SELECT 1 AS a; SELECT 2 AS b')).length, 2)
}

async function transactions(sql) {
  await assert.rejects(sql.begin(async sql => {
    await sql`INSERT INTO drv_postgresjs VALUES (3, 'gone')`
    throw new Error('back')
  }), /back/)
  await sql.begin(async sql => {
    await sql`INSERT INTO drv_postgresjs ${sql({ id: 4, v: 'kept' })}`
    await assert.rejects(sql.savepoint(sql => sql`INSERT INTO drv_postgresjs VALUES (4, 'twice')`), { code: '23505' })
  })
  assert.deepEqual((await sql`SELECT id FROM drv_postgresjs ORDER BY id`).map(r => r.id), [1, 2, 4])
}

async function streaming(sql) {
  let seen = 0
  await sql`SELECT generate_series(1, 1000) AS i`.cursor(100, rows => { for (const row of rows) assert.equal(row.i, ++seen) })
  assert.equal(seen, 1000)
  const into = await sql`COPY drv_postgresjs FROM STDIN`.writable()
  await pipeline(Readable.from(Array.from({ length: 2000 }, (_, i) => `${i + 100}\tcopied\n`)), into)
  let text = ''
  for await (const chunk of await sql`COPY (SELECT id FROM drv_postgresjs WHERE id >= 100 ORDER BY id) TO STDOUT`.readable()) text += chunk
  assert.equal(text, Array.from({ length: 2000 }, (_, i) => `${i + 100}\n`).join(''))
  await sql`DELETE FROM drv_postgresjs WHERE id >= 100`
}

async function notifications(sql) {
  let hear
  const came = new Promise(resolve => { hear = resolve })
  await sql.listen('drv_postgresjs', hear) // on a connection of its own
  await sql.notify('drv_postgresjs', 'hello')
  assert.equal(await came, 'hello')
}

async function cancelled(sql) {
  const slow = sql`SELECT pg_sleep(10)`.execute()
  setTimeout(() => slow.cancel(), 100)
  await assert.rejects(slow, { code: '57014' })
  assert.equal((await sql`SELECT 42 AS n`)[0].n, 42)
}

async function replica() {
  const sql = connect(2, { '__neki.target': 'replica', '__neki.replica_consistency': 'bounded:30s' })
  for (let i = 0; i < 3; i++) {
    assert.deepEqual([...await sql`SELECT pg_is_in_recovery() AS r, count(*)::int AS n FROM drv_postgresjs`], [{ r: true, n: 3 }])
  }
  await assert.rejects(sql`INSERT INTO drv_postgresjs VALUES (9, 'refused')`, { code: '25006' })
  await sql.end()
}

run(async () => {
  const sql = connect(4)
  await sql`DROP TABLE IF EXISTS drv_postgresjs`
  await sql`CREATE TABLE drv_postgresjs (id int PRIMARY KEY, v text)`
  await sql`INSERT INTO drv_postgresjs ${sql([{ id: 1, v: 'one' }, { id: 2, v: 'two' }])}`
  await prepared(sql)
  await transactions(sql)
  await streaming(sql)
  await notifications(sql)
  await cancelled(sql)
  if (neki) await replica()
  await sql`DROP TABLE drv_postgresjs`
  await sql.end()
})
