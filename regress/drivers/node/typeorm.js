// What a Node program does with a database, through typeorm.
'use strict'
const assert = require('node:assert/strict')
const { DataSource, EntitySchema } = require('typeorm')
const { fields, neki, replicaOptions, run, ssl } = require('./lib')

const Row = new EntitySchema({
  name: 'row', tableName: 'drv_typeorm',
  columns: { id: { type: 'int', primary: true }, v: { type: 'text' }, at: { type: 'timestamptz', createDate: true } }
})

function connect(options) {
  return new DataSource({
    type: 'postgres', ...fields, username: fields.user, ssl, entities: [Row], extra: { options, max: 4 }, installExtensions: false
  }).initialize()
}

async function transactions(db) {
  await assert.rejects(db.transaction(async tx => {
    await tx.insert(Row, { id: 3, v: 'gone' })
    throw new Error('back')
  }), /back/)
  await db.transaction('REPEATABLE READ', async tx => {
    await tx.insert(Row, { id: 4, v: 'kept' })
    await assert.rejects(tx.transaction(inner => inner.insert(Row, { id: 4, v: 'twice' })), { code: '23505' }) // a savepoint
  })
  const rows = await db.getRepository(Row).find({ order: { id: 'ASC' } })
  assert.deepEqual(rows.map(r => r.id), [1, 2, 4])
  const runner = db.createQueryRunner()
  await runner.connect()
  let seen = 0
  for await (const row of await runner.stream('SELECT generate_series(1, 1000) AS i')) assert.equal(row.i, ++seen)
  assert.equal(seen, 1000)
  await runner.release()
}

async function replica() {
  const db = await connect(replicaOptions)
  const rows = await db.getRepository(Row).createQueryBuilder('t').select('t.id', 'id').addSelect('pg_is_in_recovery()', 'r')
    .where('t.id < :most', { most: 3 }).orderBy('t.id').getRawMany()
  assert.deepEqual(rows, [{ id: 1, r: true }, { id: 2, r: true }])
  await assert.rejects(db.getRepository(Row).insert({ id: 9, v: 'refused' }), { code: '25006' })
  await db.destroy()
}

run(async () => {
  const db = await connect()
  await db.query('DROP TABLE IF EXISTS drv_typeorm')
  await db.synchronize()
  await db.getRepository(Row).save([{ id: 1, v: 'one' }, { id: 2, v: 'two' }])
  await transactions(db)
  if (neki) await replica()
  await db.query('DROP TABLE drv_typeorm')
  await db.destroy()
})
