package plan

import (
	"bytes"
	"errors"
	"slices"

	"neki/catalog"
	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/sqlparse"
)

// KeySource says where a key's value comes from.
type KeySource uint8

// The sources of keys.
const (
	KeyConst   KeySource = iota // it stands in the plan
	KeyLiteral                  // a literal of the text, by its slot; of a collapsed IN list each
	KeyParam                    // a parameter
	KeyEval                     // a column of the row of Spread.Eval
	KeyRow                      // a column of a row that goes through the gateway: InsertRows
	KeyLookup                   // what a lookup has found
)

// KeyExpr is a value of a shard key.
type KeyExpr struct {
	Source   KeySource
	At       int    // slot of the literal, index of the parameter (from 0), or column
	Const    string // of KeyConst, in text form
	Null     bool   // of KeyConst
	OID      uint32 // the type as which the value is read; of a parameter: unless the client has given another
	Negative bool   // a minus stands before the literal
	Array    bool   // the value is an array of keys: = ANY ($1)
	List     bool   // an element of IN: texts of the same shape may have more of them
	Cast     bool   // to OID, explicitly
	NullAny  bool   // NULL is a value like others: IS NOT DISTINCT FROM
	Stored   bool   // it becomes the key of a row: NULL is an error, and the type is the column's
	Typmod   int32  // of the column that stores it; -1 or 0: none
	Lookup   *Lookup
}

// Pin restricts the rows of one relation to those with one of several keys.
type Pin struct {
	Relation int // relations are counted; of those of one number all pins hold
	Keys     []KeyExpr
	Index    *catalog.Index
	Group    *catalog.Group

	at *catalog.Table
}

// Values are the values of one execution. Text is the statement as the client wrote it, which the plan was found by.
type Values struct {
	Text    []byte
	Params  [][]byte // nil = NULL
	Formats []int16  // as in Bind: none, one for all, or one each
	OIDs    []uint32 // as in Parse: may be shorter; 0 = not given
	Eval    [][]byte // the row of Spread.Eval, in text form
	Session *datum.Session
	Found   map[string]Found // of the lookups that have been made, by their Text
}

// Shards gives the shards that one execution reaches, distinct, appended to dst. When there is one, the client's own bytes
// go to it, unless the plan has a Spread with a text of its own for that too (Spread.Always). A key of one literal or
// parameter costs no allocation.
func (p *Plan) Shards(dst []string, v *Values) ([]string, error) { return p.shards(dst, &p.Route, v) }

func (p *Plan) shards(dst []string, r *Route, v *Values) ([]string, error) {
	switch r.Kind {
	case RouteEqual, RouteIn, RouteLookup:
		if len(r.Pins) == 1 && r.Shard == "" && len(r.Pins[0].Keys) == 1 {
			if shard := p.only(&r.Pins[0], v); shard != "" {
				return append(dst, shard), nil
			}
		}
		return p.pinned(dst, r, v)
	case RouteScatter:
		return append(dst, r.All...), nil
	case RouteNone, RouteReference:
		if len(r.All) == 0 {
			return append(dst, r.Shard), nil
		}
		return append(dst, r.All[0]), nil
	default:
		return append(dst, r.Shard), nil
	}
}

// only gives the shard of a pin's single value; "" when it is not that simple.
func (p *Plan) only(pin *Pin, v *Values) string {
	k := &pin.Keys[0]
	if k.Array || k.Typmod > 0 {
		return ""
	}
	var value []byte
	switch k.Source {
	case KeyLiteral:
		span, ok := p.template.find(v.Text, k.At)
		if !ok || k.Negative {
			return ""
		}
		value = span
	case KeyParam:
		return p.onlyParam(pin, k, v)
	default:
		return ""
	}
	key, err := pin.Index.KeyText(k.OID, value, v.Session)
	if err != nil {
		return ""
	}
	return pin.Group.ShardOf(key)
}

func (p *Plan) onlyParam(pin *Pin, k *KeyExpr, v *Values) string {
	value, binary, oid, ok := v.param(k)
	if !ok || value == nil {
		return ""
	}
	key, err := pin.key(oid, value, binary, v)
	if err != nil {
		return ""
	}
	return pin.Group.ShardOf(key)
}

// param gives a parameter's value and the type to read it as; ok is false when what it is compared as can't be told.
func (v *Values) param(k *KeyExpr) (value []byte, binary bool, oid uint32, ok bool) {
	if k.At >= len(v.Params) {
		return nil, false, 0, false
	}
	switch len(v.Formats) {
	case 0:
	case 1:
		binary = v.Formats[0] == 1
	default:
		binary = k.At < len(v.Formats) && v.Formats[k.At] == 1
	}
	oid = k.OID
	if k.At < len(v.OIDs) && v.OIDs[k.At] != 0 && v.OIDs[k.At] != datum.UnknownOID {
		given := v.OIDs[k.At]
		if !readsAlike(given, k) {
			return nil, false, 0, false
		}
		oid = given
	}
	return v.Params[k.At], binary, oid, true
}

// readsAlike reports whether a parameter of a type, compared as the key expression says, has the key of its own value.
func readsAlike(given uint32, k *KeyExpr) bool {
	switch {
	case given == k.OID:
		return true
	case k.Stored:
		return isWhole(given) && isWhole(k.OID) || isText(given) && isText(k.OID)
	case k.Array:
		return datum.Elem(given) != 0 && readsAlike(datum.Elem(given), &KeyExpr{OID: k.OID, Cast: k.Cast})
	case k.Cast:
		return isWhole(given) && integerRank(k.OID) > 0 || isText(given) && isText(k.OID)
	}
	family := catalog.FamilyOf(given)
	return family != catalog.FamilyNone && family == catalog.FamilyOf(k.OID)
}

// isWhole reports whether a type is one of the integers.
func isWhole(oid uint32) bool { return integerRank(oid) > 0 && oid != datum.NumericOID }

// stored gives the text that a column of a type modifier keeps of a value: varchar(n) drops blanks beyond its length.
func (k *KeyExpr) stored(value []byte) []byte {
	if k.Typmod <= 4 || k.OID != datum.VarcharOID {
		return value
	}
	n := int(k.Typmod - 4)
	for i := range string(value) {
		if n == 0 {
			if len(bytes.TrimRight(value[i:], " ")) == 0 {
				return value[:i]
			}
			return value
		}
		n--
	}
	return value
}

// pinned gives the shards of all relations' pins.
func (p *Plan) pinned(dst []string, r *Route, v *Values) ([]string, error) {
	from := len(dst)
	if r.Shard != "" {
		dst = append(dst, r.Shard)
	}
	spans := p.spans(v)
	if err := r.checkStored(v, spans); err != nil {
		return dst, err
	}
	for i := 0; i < len(r.Pins); {
		next := i + 1
		for next < len(r.Pins) && r.Pins[next].Relation == r.Pins[i].Relation {
			next++
		}
		for _, shard := range relationShards(r.Pins[i:next], v, spans) {
			if !slices.Contains(dst[from:], shard) {
				dst = append(dst, shard)
			}
		}
		i = next
	}
	if len(dst) == from { // no row anywhere: any shard of theirs gives the empty answer
		dst = append(dst, r.Pins[0].Group.Shards[0])
	}
	return dst, nil
}

// checkStored refuses NULL, and what can't be read, as the key of a row that is stored.
func (r *Route) checkStored(v *Values, spans []literalSpan) error {
	for i := range r.Pins {
		for j := range r.Pins[i].Keys {
			k := &r.Pins[i].Keys[j]
			if !k.Stored {
				continue
			}
			if _, err := r.Pins[i].storedShard(k, v, spans); err != nil {
				return err
			}
		}
	}
	return nil
}

// storedShard gives the shard that a row with the key goes to.
func (pin *Pin) storedShard(k *KeyExpr, v *Values, spans []literalSpan) (string, error) {
	shards := pin.add(nil, k, v, spans)
	switch {
	case len(shards) == 1:
		return shards[0], nil
	case len(shards) == 0:
		return "", pgerr.New(pgerr.NotNullViolation, "null value in column \"%s\", the shard key", pin.Index.Column).
			WithDetail("A row without a shard key has no shard.")
	case isWhole(k.OID) && k.Source != KeyParam: // the shard that gets it says what is wrong with it
		return shards[0], nil
	}
	if err := pin.unkeyed(k, v, spans); pgerr.Code(err) == pgerr.NotImplemented {
		return "", err
	}
	return "", unplanned(numberInsertKey, "a value of column \"%s\", the shard key, that the gateway can't read", pin.Index.Column).
		WithHint("Give it in the column's type and its usual form.")
}

// unkeyed tells why a key expression's value has no place in the key space.
func (pin *Pin) unkeyed(k *KeyExpr, v *Values, spans []literalSpan) (err error) {
	switch k.Source {
	case KeyConst:
		_, err = pin.key(k.OID, []byte(k.Const), false, v)
	case KeyLiteral:
		for _, s := range spans {
			if s.slot == k.At && err == nil {
				_, err = pin.key(k.OID, s.value, false, v)
			}
		}
	case KeyParam:
		if value, binary, oid, ok := v.param(k); ok && value != nil {
			_, err = pin.key(oid, value, binary, v)
		}
	case KeyEval:
		if k.At < len(v.Eval) && v.Eval[k.At] != nil {
			_, err = pin.key(k.OID, v.Eval[k.At], false, v)
		}
	case KeyLookup:
	}
	return err
}

// relationShards gives the shards that meet all pins of one relation.
func relationShards(pins []Pin, v *Values, spans []literalSpan) []string {
	var out []string
	for i := range pins {
		var shards []string
		for j := range pins[i].Keys {
			shards = pins[i].add(shards, &pins[i].Keys[j], v, spans)
		}
		if i == 0 {
			out = shards
			continue
		}
		out = slices.DeleteFunc(out, func(s string) bool { return !slices.Contains(shards, s) })
	}
	return out
}

// add adds the shards of a key expression. A value that can't be read means every shard: one of them says what is wrong
// with it.
func (pin *Pin) add(dst []string, k *KeyExpr, v *Values, spans []literalSpan) []string {
	switch k.Source {
	case KeyConst:
		if k.Null {
			return pin.null(dst, k)
		}
		return pin.value(dst, k, k.OID, []byte(k.Const), false, v)
	case KeyLiteral:
		found := false
		for _, s := range spans {
			if s.slot == k.At {
				found = true
				dst = pin.value(dst, k, k.OID, s.value, false, v)
			}
		}
		if !found {
			return pin.all(dst)
		}
		return dst
	case KeyParam:
		value, binary, oid, ok := v.param(k)
		switch {
		case !ok:
			return pin.all(dst)
		case value == nil:
			return pin.null(dst, k)
		}
		return pin.value(dst, k, oid, value, binary, v)
	case KeyEval:
		if k.At < len(v.Eval) && v.Eval[k.At] != nil {
			return pin.value(dst, k, k.OID, v.Eval[k.At], false, v)
		}
	case KeyLookup:
		if found, ok := v.Found[k.Lookup.Text]; ok && !found.All {
			for _, key := range found.Keys {
				dst = pin.value(dst, k, k.OID, key, true, v)
			}
			return dst
		}
	}
	return pin.all(dst)
}

func (pin *Pin) all(dst []string) []string {
	for _, s := range pin.Group.Shards {
		dst = addShard(dst, s)
	}
	return dst
}

func (pin *Pin) null(dst []string, k *KeyExpr) []string {
	if k.NullAny {
		return pin.all(dst)
	}
	return dst
}

func addShard(dst []string, shard string) []string {
	if slices.Contains(dst, shard) {
		return dst
	}
	return append(dst, shard)
}

// key gives the place of a value in the key space.
func (pin *Pin) key(oid uint32, value []byte, binary bool, v *Values) (uint64, error) {
	if binary {
		return pin.Index.KeyBinary(oid, value)
	}
	return pin.Index.KeyText(oid, value, v.Session)
}

func (pin *Pin) value(dst []string, k *KeyExpr, oid uint32, value []byte, binary bool, v *Values) []string {
	if k.Negative {
		value = append([]byte{'-'}, value...)
	}
	if k.Array {
		return pin.array(dst, oid, value, binary, v)
	}
	value = k.stored(value)
	key, err := pin.key(oid, value, binary, v)
	return pin.place(dst, key, err)
}

func (pin *Pin) place(dst []string, key uint64, err error) []string {
	switch {
	case err == nil:
		return addShard(dst, pin.Group.ShardOf(key))
	case errors.Is(err, catalog.ErrNullKey), errors.Is(err, catalog.ErrNoKey):
		return dst
	}
	return pin.all(dst)
}

// array adds the shards of an array's elements; elem is the elements' type unless it is an array's.
func (pin *Pin) array(dst []string, elem uint32, value []byte, binary bool, v *Values) []string {
	if e := datum.Elem(elem); e != 0 {
		elem = e
	}
	list := datum.ArrayOf(elem)
	if list == 0 {
		return pin.all(dst)
	}
	var d datum.Datum
	var err error
	if binary {
		d, err = datum.ParseBinary(list, value)
	} else {
		d, err = datum.ParseText(list, string(value), v.Session)
	}
	if err != nil {
		return pin.all(dst)
	}
	for _, item := range d.Array().Items {
		key, err := pin.Index.Key(elem, item)
		dst = pin.place(dst, key, err)
	}
	return dst
}

// literalSpan is the value of a literal in a text, as the type's input function reads it.
type literalSpan struct {
	slot  int
	value []byte
}

// spans is everySpan of a plan whose keys may be literals.
func (p *Plan) spans(v *Values) []literalSpan {
	if !p.hasLiteralKeys() {
		return nil
	}
	return p.everySpan(v)
}

// everySpan finds the values of all literals of an execution's text.
func (p *Plan) everySpan(v *Values) []literalSpan {
	if p.planner == nil {
		return nil
	}
	shaper := p.planner.shapers.Get().(*sqlparse.Shaper)
	defer p.planner.shapers.Put(shaper)
	shape, err := shaper.ShapeBytes(v.Text)
	if err != nil {
		return nil
	}
	var out []literalSpan
	text := string(v.Text)
	for _, l := range shape.Literals {
		out = append(out, literalSpan{l.Slot, l.AppendValue(nil, text)})
	}
	return out
}

func (p *Plan) hasLiteralKeys() bool {
	uses := func(r *Route) bool {
		return slices.ContainsFunc(r.Pins, func(pin Pin) bool {
			return slices.ContainsFunc(pin.Keys, func(k KeyExpr) bool { return k.Source == KeyLiteral })
		})
	}
	if uses(&p.Route) {
		return true
	}
	return p.Spread != nil && slices.ContainsFunc(p.Spread.Legs, func(l Leg) bool {
		return uses(&l.Route) || l.Rows != nil
	})
}

// find gives the value of the literal of a slot, in a text that has the template's shape; false when it is not simple.
func (t *template) find(text []byte, slot int) ([]byte, bool) {
	if t == nil {
		return nil, false
	}
	at, from := 0, 0
	for i := range t.literals {
		l := &t.literals[i]
		between := t.text[from:l.Start]
		if len(text)-at < len(between) || string(text[at:at+len(between)]) != between {
			return nil, false
		}
		at += len(between)
		from = l.End
		n := 0
		if l.Kind == sqlparse.LiteralInt4 {
			n = intLength(text[at:])
		} else {
			n = stringLength(text[at:])
		}
		if n < 0 {
			return nil, false
		}
		if l.Slot == slot {
			if i+1 < len(t.literals) && t.literals[i+1].Slot == slot {
				return nil, false // a list
			}
			if l.Kind == sqlparse.LiteralInt4 {
				return text[at : at+n], bytes.IndexByte(text[at:at+n], '_') < 0
			}
			return text[at+1 : at+n-1], true
		}
		at += n
	}
	return nil, false
}
