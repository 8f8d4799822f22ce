// Package hba reads client authentication rules in the form of pg_hba.conf, and maps of user names in that of
// pg_ident.conf, and finds the rule for a client: the first that fits. It does no I/O but to ask the machine for its
// addresses, which samehost and samenet stand for.
//
// It starts no goroutine. Rules and Maps are immutable once parsed, and safe for concurrent use.
//
// Manual: https://www.postgresql.org/docs/current/auth-pg-hba-conf.html and
// https://www.postgresql.org/docs/current/auth-username-maps.html
package hba
