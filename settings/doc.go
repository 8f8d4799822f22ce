// Package settings knows every setting that neki has, in one place.
//
// Three kinds live here. Session settings (the __neki.* names) are a table, [All], that gives type, default, allowed
// values, text and check; SET, SHOW, the relation neki.settings and the manual are made from it, see [Markdown].
// Parameters of gateways and admins are a second table, [ParameterTable], behind the immutable value [Parameters]. The
// file neki.yaml is the plain struct [Config].
//
// [Vars] is the whole state of one client's session settings: the __neki values, every Postgres parameter that the
// client has changed, the role and the session authorization. A Vars is immutable and interned by an [Interner]: equal
// sets made by one Interner are one pointer, so that "does this backend match this client?" is ==, a savepoint keeps
// the old pointer, and a rollback takes it back. [AppendDiff] says what a backend must be sent to turn one set into
// another.
//
// There are no goroutines here except the runtime's own, which run the cleanup of sets that nobody uses any more. All
// functions are safe for concurrent use; Neki, Parameters and Config are values.
//
// Manual: https://www.postgresql.org/docs/current/config-setting.html
package settings
