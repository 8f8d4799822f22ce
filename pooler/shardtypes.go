package pooler

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/jackc/pgx/v5"

	"neki/catalog"
	"neki/pooler/backend"
)

// typesQuery lists a database's own types and relations by what they are called. Names tell which one of another shard is
// the same.
const typesQuery = `SELECT 't', t.oid, n.nspname || '.' || pg_catalog.quote_ident(t.typname), t.typtype::pg_catalog.text,
  t.typcategory = 'A' AND t.typlen = -1 AND t.typelem <> 0,
  CASE t.typtype WHEN 'd' THEN t.typbasetype
    WHEN 'r' THEN (SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE r.rngtypid = t.oid)
    WHEN 'm' THEN (SELECT r.rngtypid FROM pg_catalog.pg_range r WHERE r.rngmultitypid = t.oid)
    ELSE t.typelem END
FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace WHERE t.oid >= 16384
UNION ALL
SELECT 'r', c.oid, n.nspname || '.' || pg_catalog.quote_ident(c.relname), '', false, 0
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid >= 16384 AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S', 'i', 'I', 'c')`

// ownType is a row of it.
type ownType struct {
	what  string // t: type, r: relation
	oid   uint32
	name  string
	kind  string
	array bool
	elem  uint32
}

// translateTypes has a connection's types translated, when it is to another shard than that whose types clients know.
func (c *Session) translateTypes(sc *backend.ServerConn, shard string) {
	snap := c.srv.cfg.Cluster.Snapshot()
	if len(snap.Shards) < 2 || shard == homeShard(snap) {
		sc.SetTypes(nil, 0)
		return
	}
	if !sc.TypesAsOf(snap.SchemaRev) { // a connection stays on its shard and in its database
		sc.SetTypes(c.db.typesOf(c.srv, shard, snap.SchemaRev), snap.SchemaRev)
	}
}

// shardTypes is a database's Types on one shard, with the schema's revision that they are of.
type shardTypes struct {
	types *backend.Types
	rev   int64
}

// typesOf gives the Types of the database on a shard.
func (d *database) typesOf(srv *Server, shard string, rev int64) *backend.Types {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := d.types[shard]
	if t == nil {
		if d.types == nil {
			d.types = map[string]*shardTypes{}
		}
		t = &shardTypes{types: backend.NewTypes(func() (*backend.TypeMap, error) { return srv.readTypes(d.name, shard) }), rev: rev}
		d.types[shard] = t
	}
	if t.rev != rev {
		t.rev = rev
		t.types.Forget()
	}
	return t.types
}

// readTypes reads what a database's types are called on a shard, and at home.
func (s *Server) readTypes(database, shard string) (*backend.TypeMap, error) {
	ctx, cancel := context.WithTimeout(context.Background(), controlTimeout) //nolint:forbidigo // bounded here
	defer cancel()
	snap := s.cfg.Cluster.Snapshot()
	there, err := s.ownTypes(ctx, snap, database, shard)
	if err != nil {
		return nil, err
	}
	home, err := s.ownTypes(ctx, snap, database, homeShard(snap))
	if err != nil {
		return nil, err
	}
	byName := make(map[string]uint32, len(home))
	for _, t := range home {
		byName[t.what+t.name] = t.oid
	}
	var types []backend.MappedType
	relations := map[uint32]uint32{}
	for _, t := range there {
		at := byName[t.what+t.name]
		if t.what == "r" {
			relations[t.oid] = at
			continue
		}
		types = append(types, backend.MappedType{
			Here: t.oid, Home: at, Array: t.array, Elem: t.elem, Composite: t.kind == "c", Range: t.kind == "r", Multi: t.kind == "m",
		})
	}
	return backend.NewTypeMap(types, relations), nil
}

// ownTypes asks a shard's primary, or one of its replicas.
func (s *Server) ownTypes(ctx context.Context, snap *catalog.Snapshot, database, shard string) (all []ownType, err error) {
	nodes := snap.NodesOf(shard)
	if p := snap.PrimaryOf(shard); p != nil {
		nodes = append([]*catalog.Node{p}, nodes...)
	}
	err = fmt.Errorf("shard %s has no instance", shard)
	for _, n := range nodes {
		all = nil
		err = s.control.queryNode(ctx, n, database, typesQuery, nil, func(rows pgx.Rows) error {
			var t ownType
			if err := rows.Scan(&t.what, &t.oid, &t.name, &t.kind, &t.array, &t.elem); err != nil {
				return err
			}
			all = append(all, t)
			return nil
		})
		if err == nil {
			break
		}
	}
	return all, err
}

// Described notes what a server says of a statement's rows.
func (c *Session) Described(index int, embeds bool) {
	if index < len(c.work.plans) {
		if p := c.work.plans[index]; p != nil {
			p.NoteResult(embeds)
		}
	}
}

// describeFirst appends a Describe of the portal that o executes, where the rows may have OIDs in them that must be replaced
// and the answer would not tell where.
func (c *Session) describeFirst(out []byte, sc *backend.ServerConn, o *op) []byte {
	if !sc.Translates() || o.typ != 'E' || o.plan == nil || o.plan.PlainResult() && !c.ownTypes {
		return out
	}
	raw := c.work.in[o.at:o.end]
	name := raw[5 : len(raw)-4] // and its end
	c.expect('D', backend.Swallow, o.plan)
	start := len(out)
	out = append(out, 'D', 0, 0, 0, 0, 'P')
	return endMessage(append(out, name...), start)
}

// noteParamTypes looks whether a Parse message gives its parameters types of a user's: the result of the same text may depend
// on them. types is a count and the OIDs.
func (c *Session) noteParamTypes(types []byte) {
	for at := 2; at+4 <= len(types); at += 4 {
		c.ownTypes = c.ownTypes || binary.BigEndian.Uint32(types[at:]) >= firstUserOID
	}
}

// firstUserOID is where the OIDs of what users make begin.
const firstUserOID = 16384
