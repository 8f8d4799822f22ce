// What a Node program does with a database, through drizzle on node-postgres.
'use strict'
const assert = require('node:assert/strict')
const { eq, sql, asc } = require('drizzle-orm')
const { drizzle } = require('drizzle-orm/node-postgres')
const { integer, pgTable, text } = require('drizzle-orm/pg-core')
const { Pool } = require('pg')
const { neki, replicaOptions, run, ssl } = require('./lib')

const table = pgTable('drv_drizzle', { id: integer('id').primaryKey(), v: text('v').notNull() })
const code = wanted => error => (error.cause ?? error).code === wanted

async function prepared(db) {
  const byId = db.select().from(table).where(eq(table.id, sql.placeholder('id'))).prepare('drizzle_by_id')
  for (const [id, v] of [[1, 'one'], [2, 'two'], [1, 'one']]) assert.deepEqual(await byId.execute({ id }), [{ id, v }])
}

async function transactions(db) {
  await assert.rejects(db.transaction(async tx => {
    await tx.insert(table).values({ id: 3, v: 'gone' })
    tx.rollback()
  }))
  await db.transaction(async tx => {
    await tx.insert(table).values({ id: 4, v: 'kept' })
    await assert.rejects(tx.transaction(tx => tx.insert(table).values({ id: 4, v: 'twice' })), code('23505'))
  }, { isolationLevel: 'repeatable read' })
  assert.deepEqual((await db.select().from(table).orderBy(asc(table.id))).map(r => r.id), [1, 2, 4])
  await db.insert(table).values({ id: 4, v: 'changed' }).onConflictDoUpdate({ target: table.id, set: { v: 'changed' } })
  assert.deepEqual(await db.delete(table).where(eq(table.v, 'changed')).returning(), [{ id: 4, v: 'changed' }])
}

async function replica() {
  const pool = new Pool({ ssl, options: replicaOptions, max: 2 })
  const db = drizzle(pool)
  const rows = await db.select({ recovering: sql`pg_is_in_recovery()`, id: table.id }).from(table).orderBy(table.id)
  assert.deepEqual(rows, [{ recovering: true, id: 1 }, { recovering: true, id: 2 }])
  await assert.rejects(db.insert(table).values({ id: 9, v: 'refused' }), code('25006'))
  await pool.end()
}

run(async () => {
  const pool = new Pool({ ssl, max: 4 })
  const db = drizzle(pool)
  await db.execute(sql`DROP TABLE IF EXISTS drv_drizzle`)
  await db.execute(sql`CREATE TABLE drv_drizzle (id int PRIMARY KEY, v text NOT NULL)`)
  await db.insert(table).values([{ id: 1, v: 'one' }, { id: 2, v: 'two' }])
  await prepared(db)
  await transactions(db)
  if (neki) await replica()
  await db.execute(sql`DROP TABLE drv_drizzle`)
  await pool.end()
})
