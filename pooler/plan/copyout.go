package plan

import (
	"slices"
	"strings"

	"neki/internal/pgerr"
	"neki/sqlparse"
)

// CopyOut is how COPY ... TO STDOUT of rows that the gateway makes is written.
type CopyOut struct {
	CSV, Binary       bool
	Header            bool
	UTF8              bool // is asked for, whatever the client's encoding is
	Delimiter         byte
	Quote, Escape     byte // of CSV
	Null              string
	ForceQuote        []string // columns
	ForceQuoteColumns bool     // all of them
}

// virtualCopy plans COPY of rows of the virtual schema; it gives the query that makes them.
func virtualCopy(st *sqlparse.Statement, name, others string) (*sqlparse.Statement, *CopyOut, error) {
	c := st.Copy
	if c.From {
		return nil, nil, cantChange(name)
	}
	if !c.Client {
		return nil, nil, pgerr.New(pgerr.FeatureNotSupported, "cannot write %s to a file or program of the server", name).
			WithDetail("Its rows are at the gateway.").
			WithHint("Use COPY ... TO STDOUT, or psql's \\copy.")
	}
	query := c.Query
	if query == nil {
		columns := make([]string, len(c.Columns))
		for i, column := range c.Columns {
			columns[i] = sqlparse.QuoteIdent(column)
		}
		list := "*"
		if len(columns) > 0 {
			list = strings.Join(columns, ", ")
		}
		from := sqlparse.QuoteIdent(c.Relation.Name)
		if c.Relation.Schema != "" {
			from = sqlparse.QuoteIdent(c.Relation.Schema) + "." + from
		}
		var err error
		if query, err = sqlparse.Parse("SELECT " + list + " FROM " + from); err != nil {
			return nil, nil, err
		}
	}
	if query.Kind != sqlparse.KindSelect {
		return nil, nil, cantChange(name)
	}
	if err := virtualSelect(query, name, others); err != nil {
		return nil, nil, err
	}
	out, err := copyOptions(c)
	switch {
	case err != nil:
		return nil, nil, err
	case out.Binary:
		return nil, nil, notImplemented(copyOfVirtual, "COPY of a relation of the schema neki in binary format").
			WithHint("Use the format text or csv.")
	}
	return query, out, nil
}

// copyOptions reads the options as Postgres does; see https://www.postgresql.org/docs/current/sql-copy.html.
func copyOptions(c *sqlparse.CopyStmt) (*CopyOut, error) {
	out := &CopyOut{Delimiter: '\t', Null: `\N`, Quote: '"'}
	switch format, _ := c.Option("format"); strings.ToLower(format.Value) {
	case "", "text":
	case "csv":
		out.CSV, out.Delimiter, out.Null = true, ',', ""
	case "binary":
		out.Binary = true
	default:
		return nil, pgerr.New(pgerr.InvalidParameterValue, "COPY format \"%s\" not recognized", format.Value)
	}
	for _, o := range c.Options {
		if err := out.check(o); err != nil {
			return nil, err
		}
		if err := out.set(o); err != nil {
			return nil, err
		}
	}
	if out.Escape == 0 {
		out.Escape = out.Quote
	}
	if out.CSV && out.Delimiter == out.Quote {
		return nil, pgerr.New(pgerr.InvalidParameterValue, "COPY delimiter and quote must be different")
	}
	return out, nil
}

// check refuses options that are not for the format.
func (out *CopyOut) check(o sqlparse.CopyOption) error {
	if slices.Contains([]string{"quote", "escape", "force_quote"}, o.Name) && !out.CSV {
		return pgerr.New(pgerr.FeatureNotSupported, "COPY %s available only in CSV mode", strings.ReplaceAll(o.Name, "_", " "))
	}
	if !out.Binary {
		return nil
	}
	switch o.Name {
	case "delimiter", "null":
		return pgerr.New(pgerr.SyntaxError, "cannot specify %s in BINARY mode", strings.ToUpper(o.Name))
	case "header":
		return pgerr.New(pgerr.FeatureNotSupported, "cannot specify HEADER in BINARY mode")
	}
	return nil
}

func (out *CopyOut) set(o sqlparse.CopyOption) error {
	switch o.Name {
	case "format":
	case "header":
		if strings.EqualFold(o.Value, "match") {
			return pgerr.New(pgerr.FeatureNotSupported, "cannot use \"match\" with HEADER in COPY TO")
		}
		out.Header = !contains(offWords, strings.ToLower(o.Value))
	case "null":
		out.Null = o.Value
	case "delimiter":
		return oneByte(&out.Delimiter, o)
	case "quote":
		return oneByte(&out.Quote, o)
	case "escape":
		return oneByte(&out.Escape, o)
	case "force_quote":
		out.ForceQuote = o.Values
		out.ForceQuoteColumns = len(o.Values) == 0 || slices.Contains(o.Values, "*")
	case "encoding":
		if e := strings.ToUpper(strings.ReplaceAll(o.Value, "-", "")); e != "UTF8" && e != "UNICODE" {
			return notImplemented(copyOfVirtual, "COPY of rows that the gateway makes in another encoding than UTF8")
		}
		out.UTF8 = true
	default:
		return pgerr.New(pgerr.SyntaxError, "option \"%s\" not recognized", o.Name)
	}
	return nil
}

func oneByte(to *byte, o sqlparse.CopyOption) error {
	if len(o.Value) != 1 || o.Value == "\n" || o.Value == "\r" {
		return pgerr.New(pgerr.FeatureNotSupported, "COPY %s must be a single one-byte character", o.Name)
	}
	*to = o.Value[0]
	return nil
}
