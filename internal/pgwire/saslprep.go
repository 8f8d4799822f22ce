package pgwire

// saslPrep prepares a password.
func saslPrep(password string) string { return password }
