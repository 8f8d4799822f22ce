// What the Node programs share: where they run, TLS by PGSSLMODE=verify-full and PGSSLROOTCERT, and how they end.
'use strict'
const fs = require('node:fs')

exports.neki = process.argv[2] === 'neki'
exports.replicaOptions = '-c __neki.target=replica -c __neki.replica_consistency=bounded:30s'
exports.ssl = process.env.PGSSLMODE === 'disable' ? false : { ca: fs.readFileSync(process.env.PGSSLROOTCERT, 'utf8') }

// url has all that a library needs that reads no PG* variables.
exports.url = `postgres://${process.env.PGUSER}:${encodeURIComponent(process.env.PGPASSWORD)}@${process.env.PGHOST}:${process.env.PGPORT}/${process.env.PGDATABASE}`

exports.fields = {
  host: process.env.PGHOST, port: Number(process.env.PGPORT), user: process.env.PGUSER,
  password: process.env.PGPASSWORD, database: process.env.PGDATABASE
}

exports.run = main => main().catch(error => {
  console.error(error)
  process.exit(1)
})
