// What a Node program does with a database, through kysely on node-postgres, with pg-cursor for streams.
'use strict'
const assert = require('node:assert/strict')
const { Kysely, PostgresDialect, sql } = require('kysely')
const { Pool } = require('pg')
const Cursor = require('pg-cursor')
const { neki, replicaOptions, run, ssl } = require('./lib')

const connect = options => new Kysely({ dialect: new PostgresDialect({ cursor: Cursor, pool: new Pool({ ssl, options, max: 4 }) }) })

async function transactions(db) {
  await assert.rejects(db.transaction().execute(async tx => {
    await tx.insertInto('drv_kysely').values({ id: 3, v: 'gone' }).execute()
    throw new Error('back')
  }), /back/)
  const tx = await db.startTransaction().execute()
  await tx.insertInto('drv_kysely').values({ id: 4, v: 'kept' }).execute()
  const inner = await tx.savepoint('s').execute()
  await assert.rejects(inner.insertInto('drv_kysely').values({ id: 4, v: 'twice' }).execute(), { code: '23505' })
  await inner.rollbackToSavepoint('s').execute()
  await tx.commit().execute()
  assert.deepEqual((await db.selectFrom('drv_kysely').select('id').orderBy('id').execute()).map(r => r.id), [1, 2, 4])
}

async function streaming(db) {
  let seen = 0
  const all = db.selectNoFrom(sql`generate_series(1, 1000)`.as('i'))
  for await (const row of all.stream(100)) assert.equal(row.i, ++seen)
  assert.equal(seen, 1000)
}

async function replica() {
  const db = connect(replicaOptions)
  const rows = await db.selectFrom('drv_kysely').select(['id', sql`pg_is_in_recovery()`.as('r')]).where('id', '<', 3).orderBy('id').execute()
  assert.deepEqual(rows, [{ id: 1, r: true }, { id: 2, r: true }])
  await assert.rejects(db.insertInto('drv_kysely').values({ id: 9, v: 'refused' }).execute(), { code: '25006' })
  await db.destroy()
}

run(async () => {
  const db = connect()
  await db.schema.dropTable('drv_kysely').ifExists().execute()
  await db.schema.createTable('drv_kysely').addColumn('id', 'integer', c => c.primaryKey()).addColumn('v', 'text').execute()
  await db.insertInto('drv_kysely').values([{ id: 1, v: 'one' }, { id: 2, v: 'two' }]).execute()
  assert.equal((await db.introspection.getTables()).filter(t => t.name === 'drv_kysely').length, 1)
  await transactions(db)
  await streaming(db)
  if (neki) await replica()
  await db.schema.dropTable('drv_kysely').execute()
  await db.destroy()
})
