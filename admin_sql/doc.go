// Package adminsql is the virtual neki schema: the relations and procedures by which a cluster is looked at and
// controlled in SQL.
//
// Schema is the only registry. A Relation lists typed columns and gives rows from memory of this process, so it
// answers with every Postgres stopped. A Procedure has typed, named arguments and a body that acts through Controls.
// The facts come from small interfaces in inputs.go, which pooler and cmd implement; this package does no network
// I/O of its own.
//
// A statement goes through Schema.Prepare once (columns and parameter types are known then, nothing has run) and
// through Prepared.Run for each execution. Both are immutable and safe for concurrent use; a Prepared may be shared by
// sessions, because the Session travels with the run (exec.Env.Caller). The package starts no goroutines.
//
// Rights: relations need membership of neki_viewer, procedures of neki_operator; a superuser has both, and everyone
// sees his own rows of neki.sessions and neki.settings. They are checked by Prepare and again by each Run.
//
// NULL means unknown, never 0 or the empty string.
//
// StubSQL gives the objects that stand for all of this in each database, so that \d, tab completion and
// information_schema find them.
//
// Manual: https://www.postgresql.org/docs/current/sql-call.html and
// https://www.postgresql.org/docs/current/catalogs.html
package adminsql
