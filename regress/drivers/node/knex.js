// What a Node program does with a database, through knex on node-postgres, with pg-query-stream for streams.
'use strict'
const assert = require('node:assert/strict')
const knex = require('knex')
const { fields, neki, replicaOptions, run, ssl } = require('./lib')

const connect = options => knex({ client: 'pg', connection: { ...fields, ssl, options }, pool: { min: 0, max: 4 } })

async function transactions(db) {
  await assert.rejects(db.transaction(async tx => {
    await tx('drv_knex').insert({ id: 3, v: 'gone' })
    throw new Error('back')
  }), /back/)
  await db.transaction(async tx => {
    await tx('drv_knex').insert({ id: 4, v: 'kept' })
    await assert.rejects(tx.transaction(inner => inner('drv_knex').insert({ id: 4, v: 'twice' })), { code: '23505' })
  }, { isolationLevel: 'serializable' })
  assert.deepEqual(await db('drv_knex').orderBy('id').pluck('id'), [1, 2, 4])
}

async function streaming(db) {
  await db.batchInsert('drv_knex', Array.from({ length: 1000 }, (_, i) => ({ id: i + 100, v: 'many' })), 100)
  let at = 100
  for await (const row of db('drv_knex').where('id', '>=', 100).orderBy('id').stream({ batchSize: 100 })) assert.equal(row.id, at++)
  assert.equal(at, 1100)
  assert.equal(await db('drv_knex').where('id', '>=', 100).del(), 1000)
}

async function timeout(db) {
  await assert.rejects(db.transaction(async tx => {
    await tx.raw('SET LOCAL statement_timeout = 50')
    await tx.raw('SELECT pg_sleep(10)')
  }), { code: '57014' })
  assert.equal((await db.raw('SELECT 42 AS n')).rows[0].n, 42)
}

async function replica() {
  const db = connect(replicaOptions)
  assert.deepEqual(await db('drv_knex').select('id', db.raw('pg_is_in_recovery() AS r')).where('id', '<', 3).orderBy('id'),
    [{ id: 1, r: true }, { id: 2, r: true }])
  await assert.rejects(db('drv_knex').insert({ id: 9, v: 'refused' }), { code: '25006' })
  await db.destroy()
}

run(async () => {
  const db = connect()
  await db.schema.dropTableIfExists('drv_knex')
  await db.schema.createTable('drv_knex', t => { t.integer('id').primary(); t.text('v') })
  await db('drv_knex').insert([{ id: 1, v: 'one' }, { id: 2, v: 'two' }])
  assert.equal(await db.schema.hasColumn('drv_knex', 'v'), true)
  await transactions(db)
  await streaming(db)
  await timeout(db)
  if (neki) await replica()
  await db.schema.dropTable('drv_knex')
  await db.destroy()
})
