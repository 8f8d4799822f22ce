package exec

import (
	"encoding/json"
	"math"
	"strconv"

	"neki/internal/datum"
	"neki/internal/pgerr"
)

// jsonStep goes one step into a jsonb value: by key of an object or index of an array.
func jsonStep(v datum.JSON, step datum.Datum, byIndex bool) (datum.JSON, bool) {
	if !byIndex {
		o, ok := v.(datum.Object)
		if !ok {
			return nil, false
		}
		return o.Get(step.Text())
	}
	list, ok := v.([]datum.JSON)
	i := step.Int()
	if i < 0 {
		i += int64(len(list))
	}
	if !ok || i < 0 || i >= int64(len(list)) {
		return nil, false
	}
	return list[i], true
}

func jsonResult(v datum.JSON, found, asText bool) (datum.Datum, error) {
	switch {
	case !found:
		return datum.Null, nil
	case !asText:
		return datum.Text(string(datum.AppendJSON(nil, v))), nil
	case v == nil:
		return datum.Null, nil
	}
	if s, ok := v.(string); ok {
		return datum.Text(s), nil
	}
	return datum.Text(string(datum.AppendJSON(nil, v))), nil
}

func jsonGet(byIndex, asText bool) Builtin {
	return func(_ Call, a []datum.Datum) (datum.Datum, error) {
		v, err := datum.ParseJSON(a[0].Text())
		if err != nil {
			return datum.Null, err
		}
		if byIndex && isScalar(v) { // the server keeps a scalar as an array of one
			v = []datum.JSON{v}
		}
		v, found := jsonStep(v, a[1], byIndex)
		return jsonResult(v, found, asText)
	}
}

func isScalar(v datum.JSON) bool {
	switch v.(type) {
	case []datum.JSON, datum.Object:
		return false
	}
	return true
}

func jsonPath(asText bool) Builtin {
	return func(_ Call, a []datum.Datum) (datum.Datum, error) {
		v, err := datum.ParseJSON(a[0].Text())
		if err != nil {
			return datum.Null, err
		}
		found := true
		for _, step := range a[1].Array().Items {
			if step.IsNull() {
				return datum.Null, nil
			}
			_, isList := v.([]datum.JSON)
			if isList {
				i, err := strconv.ParseInt(step.Text(), 10, 32)
				if err != nil {
					return datum.Null, nil
				}
				step = datum.Int(i)
			}
			if v, found = jsonStep(v, step, isList); !found {
				return datum.Null, nil
			}
		}
		return jsonResult(v, found, asText)
	}
}

// toJSON gives a value as jsonb.
func toJSON(c Call, oid uint32, d datum.Datum) (datum.JSON, error) {
	if d.IsNull() {
		return nil, nil
	}
	switch oid {
	case datum.BoolOID:
		return d.Bool(), nil
	case datum.JSONOID, datum.JSONBOID:
		return datum.ParseJSON(d.Text())
	case datum.DateOID, datum.TimestampOID, datum.TimestamptzOID:
		return nil, pgerr.New(pgerr.FeatureNotSupported, "dates and timestamps as jsonb are not supported here").
			WithHint("Cast to text.")
	}
	if elem := datum.Elem(oid); elem != 0 {
		list := []datum.JSON{}
		for _, item := range d.Array().Items {
			v, err := toJSON(c, elem, item)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		return list, nil
	}
	text, err := datum.Format(oid, d, c.session())
	if err != nil {
		return nil, err
	}
	switch oid {
	case datum.Int2OID, datum.Int4OID, datum.Int8OID:
		return json.Number(text), nil
	case datum.NumericOID:
		if d.Numeric().Form == 0 {
			return json.Number(text), nil
		}
	case datum.Float4OID, datum.Float8OID:
		if !math.IsNaN(d.Float()) && !math.IsInf(d.Float(), 0) {
			return datum.ParseJSON(text)
		}
	}
	return text, nil
}

func buildObject(c Call, a []datum.Datum) (datum.Datum, error) {
	if len(a)%2 != 0 {
		return datum.Null, pgerr.New(pgerr.InvalidParameterValue, "argument list must have even number of elements").
			WithHint("The arguments of %s must consist of alternating keys and values.", c.Name+"()")
	}
	var o datum.Object
	for i := 0; i < len(a); i += 2 {
		if a[i].IsNull() {
			return datum.Null, pgerr.New(pgerr.InvalidParameterValue, "argument %d: key must not be null", i+1)
		}
		key, err := datum.Format(c.Args[i].OID, a[i], c.session())
		if err != nil {
			return datum.Null, err
		}
		v, err := toJSON(c, c.Args[i+1].OID, a[i+1])
		if err != nil {
			return datum.Null, err
		}
		o = append(o, datum.Member{Key: key, Value: v})
	}
	return datum.Text(string(datum.AppendJSON(nil, datum.SortObject(o)))), nil
}

func buildArray(c Call, a []datum.Datum) (datum.Datum, error) {
	list := []datum.JSON{}
	for i, d := range a {
		v, err := toJSON(c, c.Args[i].OID, d)
		if err != nil {
			return datum.Null, err
		}
		list = append(list, v)
	}
	return datum.Text(string(datum.AppendJSON(nil, list))), nil
}

var jsonBuiltins = map[string]Builtin{
	"jsonb_object_field": jsonGet(false, false), "jsonb_object_field_text": jsonGet(false, true),
	"jsonb_array_element": jsonGet(true, false), "jsonb_array_element_text": jsonGet(true, true),
	"jsonb_extract_path": jsonPath(false), "jsonb_extract_path_text": jsonPath(true),
	"jsonb_build_object": buildObject, "jsonb_build_object_noargs": buildObject,
	"jsonb_build_array": buildArray, "jsonb_build_array_noargs": buildArray,
	"to_jsonb": func(c Call, a []datum.Datum) (datum.Datum, error) {
		v, err := toJSON(c, c.Args[0].OID, a[0])
		if err != nil {
			return datum.Null, err
		}
		return datum.Text(string(datum.AppendJSON(nil, v))), nil
	},
	"jsonb_typeof": func(_ Call, a []datum.Datum) (datum.Datum, error) {
		v, err := datum.ParseJSON(a[0].Text())
		name := "null"
		switch v.(type) {
		case bool:
			name = "boolean"
		case string:
			name = "string"
		case json.Number:
			name = "number"
		case []datum.JSON:
			name = "array"
		case datum.Object:
			name = "object"
		}
		return datum.Text(name), err
	},
	"jsonb_array_length": func(_ Call, a []datum.Datum) (datum.Datum, error) {
		v, err := datum.ParseJSON(a[0].Text())
		if err != nil {
			return datum.Null, err
		}
		switch v := v.(type) {
		case []datum.JSON:
			return datum.Int(int64(len(v))), nil
		case datum.Object:
			return datum.Null, pgerr.New(pgerr.InvalidParameterValue, "cannot get array length of a non-array")
		}
		return datum.Null, pgerr.New(pgerr.InvalidParameterValue, "cannot get array length of a scalar")
	},
	"jsonb_exists": func(_ Call, a []datum.Datum) (datum.Datum, error) {
		v, err := datum.ParseJSON(a[0].Text())
		found := false
		switch v := v.(type) {
		case datum.Object:
			_, found = v.Get(a[1].Text())
		case []datum.JSON:
			for _, item := range v {
				found = found || item == a[1].Text()
			}
		case string:
			found = v == a[1].Text()
		}
		return datum.Bool(found), err
	},
}
