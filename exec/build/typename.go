package build

import (
	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/sqlparse"
)

// typeOf resolves a type's name.
func (b *builder) typeOf(n *sqlparse.TypeName) (datum.Type, error) {
	names := strs(n.Names)
	if n.PctType || n.Setof || len(names) == 0 {
		return datum.Type{}, unsupported(n.Location, "this type reference")
	}
	name := names[len(names)-1]
	row := system().typeByName[name]
	if row == nil || len(names) > 2 || len(names) == 2 && names[0] != "pg_catalog" {
		full := name
		if len(names) == 2 {
			full = names[0] + "." + name
		}
		return datum.Type{}, errAt(n.Location, pgerr.UndefinedObject, "type \"%s\" does not exist", full)
	}
	t := datum.Of(row.oid)
	for range n.ArrayBounds {
		if elemOf(t.OID) == 0 {
			t.OID = arrayOf(t.OID)
		}
	}
	if !datum.Known(t.OID) || t.OID == datum.UnknownOID || t.OID == datum.VoidOID {
		return datum.Type{}, unsupported(n.Location, "type %s", typeName(t.OID))
	}
	var err error
	if len(n.Typmods) > 0 {
		t.Typmod, err = typmodOf(t.OID, n)
	}
	return t, err
}

func typmodOf(oid uint32, n *sqlparse.TypeName) (int32, error) {
	var mods []int32
	for _, m := range n.Typmods {
		c := m.GetAConst()
		if c == nil || c.GetIval() == nil {
			return 0, unsupported(n.Location, "this type modifier")
		}
		mods = append(mods, c.GetIval().GetIval())
	}
	invalid := func(format string, args ...any) error {
		return errAt(n.Location, pgerr.InvalidParameterValue, format, args...)
	}
	switch {
	case oid == datum.VarcharOID && len(mods) == 1:
		if mods[0] < 1 {
			return 0, invalid("length for type varchar must be at least 1")
		}
		if mods[0] > 10485760 {
			return 0, invalid("length for type varchar cannot exceed 10485760")
		}
		return mods[0] + 4, nil
	case oid == datum.NumericOID && len(mods) <= 2:
		scale := int32(0)
		if len(mods) == 2 {
			scale = mods[1]
		}
		if mods[0] < 1 || mods[0] > 1000 {
			return 0, invalid("NUMERIC precision %d must be between 1 and 1000", mods[0])
		}
		if scale < -1000 || scale > 1000 {
			return 0, invalid("NUMERIC scale %d must be between -1000 and 1000", scale)
		}
		return datum.MakeNumericTypmod(mods[0], scale), nil
	case (oid == datum.TimestampOID || oid == datum.TimestamptzOID) && len(mods) == 1:
		return min(mods[0], 6), nil
	}
	return 0, unsupported(n.Location, "a modifier of type %s", typeName(oid))
}

// strs gives the strings of a list of String nodes.
func strs(nodes []*sqlparse.Node) []string {
	var out []string
	for _, n := range nodes {
		out = append(out, n.GetString_().GetSval())
	}
	return out
}
