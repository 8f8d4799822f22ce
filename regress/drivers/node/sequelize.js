// What a Node program does with a database, through sequelize, which sets things when it connects and reads the catalog.
'use strict'
const assert = require('node:assert/strict')
const { DataTypes, Sequelize, Transaction } = require('sequelize')
const { fields, neki, replicaOptions, run, ssl } = require('./lib')

function connect(options) {
  const db = new Sequelize(fields.database, fields.user, fields.password, {
    dialect: 'postgres', host: fields.host, port: fields.port, logging: false, pool: { max: 4 }, dialectOptions: { ssl, options }
  })
  const Row = db.define('row', { id: { type: DataTypes.INTEGER, primaryKey: true }, v: DataTypes.TEXT, kind: DataTypes.ENUM('a', 'b') },
    { tableName: 'drv_sequelize', timestamps: false })
  return { db, Row }
}

async function transactions({ db, Row }) {
  await assert.rejects(db.transaction(async transaction => {
    await Row.create({ id: 3, v: 'gone' }, { transaction })
    throw new Error('back')
  }), /back/)
  await db.transaction({ isolationLevel: Transaction.ISOLATION_LEVELS.REPEATABLE_READ }, async transaction => {
    await Row.create({ id: 4, v: 'kept', kind: 'b' }, { transaction })
    await assert.rejects(db.transaction({ transaction }, inner => Row.create({ id: 4, v: 'twice' }, { transaction: inner })),
      { name: 'SequelizeUniqueConstraintError' })
  })
  assert.deepEqual((await Row.findAll({ order: ['id'], attributes: ['id'], raw: true })).map(r => r.id), [1, 2, 4])
  const [rows] = await db.query('SELECT v FROM drv_sequelize WHERE id = $id', { bind: { id: 4 } })
  assert.deepEqual(rows, [{ v: 'kept' }])
}

async function replica() {
  const { db, Row } = connect(replicaOptions)
  const rows = await Row.findAll({ attributes: ['id', [Sequelize.fn('pg_is_in_recovery'), 'r']], order: ['id'], raw: true })
  assert.deepEqual(rows, [1, 2, 4].map(id => ({ id, r: true })))
  await assert.rejects(Row.create({ id: 9, v: 'refused' }), error => error.original.code === '25006')
  await db.close()
}

run(async () => {
  const { db, Row } = connect()
  await Row.sync({ force: true })
  await Row.bulkCreate([{ id: 1, v: 'one', kind: 'a' }, { id: 2, v: 'two' }])
  await transactions({ db, Row })
  await Row.sync({ alter: true })
  if (neki) await replica()
  await Row.drop({})
  await db.close()
})
