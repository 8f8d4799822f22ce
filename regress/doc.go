// Package regress tests neki from outside, as its clients see it: suites run by PostgreSQL's own pg_regress, real
// drivers, and what a cluster promises while its replicas lag, stop or return. It holds tests only.
//
// They need bin/neki (NEKI_BIN), which `make regress` builds and names; the cluster is `neki dev` in a directory of
// its own, started once for all tests, or a running one whose dev.env is named in NEKI_DEV_ENV. Suites whose output
// is plain Postgres's are first held against a plain Postgres, so an expected file can't come to agree with a fault
// of ours. `go test ./regress -run 'Plain|Suites' -update` writes the expected files anew.
package regress
