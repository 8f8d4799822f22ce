package admin

import (
	"context"

	"neki/catalog"
)

// Instance is a place for a server that does not exist yet.
type Instance struct {
	ID, Shard string
	Role      catalog.Role
	Cell      string
	Profile   string
}

// Provider starts and removes instances with their agents, where neki can: `neki dev` does, and what rents machines would.
// Without one, instances are those whose agents somebody has started. Its methods are safe for concurrent use, and may
// be called again for what is done already.
type Provider interface {
	// StartInstance has an empty instance run with its agent, which registers by itself.
	StartInstance(ctx context.Context, in Instance) error
	// RemoveInstance stops an instance and its agent, and removes its data. One that is not there is no error.
	RemoveInstance(ctx context.Context, node string) error
}
