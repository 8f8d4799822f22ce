package datum

import (
	"errors"
	"math"
	"math/big"
	"strconv"
	"strings"

	"github.com/cockroachdb/apd/v3"

	"neki/internal/pgerr"
)

// A numeric is an apd.Decimal whose exponent is -dscale (the number of digits shown after the point), so never above 0.

const (
	maxNumericWeight  = 131072 // digits before the decimal point
	maxNumericScale   = 16383
	maxDisplayScale   = 1000
	minSigDigits      = 16
	decDigits         = 4 // Postgres computes in base 10000
	maxTypmodPrecison = 1000
)

var errNumericOverflow = pgerr.New(pgerr.NumericValueOutOfRange, "value overflows numeric format")

// NumericFromInt makes a numeric with scale 0.
func NumericFromInt(i int64) Datum { return Numeric(apd.New(i, 0)) }

// NumericFromBig makes a numeric of coeff * 10^-scale.
func NumericFromBig(coeff *big.Int, scale int32) Datum {
	return Numeric(newDecimal(coeff, scale))
}

func newDecimal(coeff *big.Int, scale int32) *apd.Decimal {
	d := &apd.Decimal{Exponent: -scale, Negative: coeff.Sign() < 0}
	d.Coeff.SetMathBigInt(new(big.Int).Abs(coeff))
	return d
}

// signed gives the coefficient with its sign.
func signed(d *apd.Decimal) *big.Int {
	c := d.Coeff.MathBigInt()
	if d.Negative {
		c = new(big.Int).Neg(c)
	}
	return c
}

func pow10(n int32) *big.Int { return new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil) }

func checkNumeric(d *apd.Decimal) (Datum, error) {
	if d.Form == apd.Finite && d.NumDigits()+int64(d.Exponent) > maxNumericWeight && d.Coeff.Sign() != 0 {
		return Null, errNumericOverflow
	}
	if d.Form == apd.Finite && d.Coeff.Sign() == 0 {
		d.Negative = false
	}
	return Numeric(d), nil
}

func parseNumeric(text string) (Datum, error) {
	invalid := func() (Datum, error) {
		return Null, pgerr.New(pgerr.InvalidTextRepresentation, "invalid input syntax for type numeric: \"%s\"", text)
	}
	s := strings.TrimSpace(text)
	switch strings.ToLower(s) {
	case "nan":
		return Numeric(&apd.Decimal{Form: apd.NaN}), nil
	case "infinity", "+infinity", "inf", "+inf":
		return Numeric(&apd.Decimal{Form: apd.Infinite}), nil
	case "-infinity", "-inf":
		return Numeric(&apd.Decimal{Form: apd.Infinite, Negative: true}), nil
	}
	mantissa, exponent := s, int64(0)
	if i := strings.IndexAny(s, "eE"); i >= 0 {
		var err error
		if exponent, err = strconv.ParseInt(s[i+1:], 10, 64); err != nil {
			if errors.Is(err, strconv.ErrRange) {
				return Null, errNumericOverflow
			}
			return invalid()
		}
		mantissa = s[:i]
	}
	negative := strings.HasPrefix(mantissa, "-")
	if negative || strings.HasPrefix(mantissa, "+") {
		mantissa = mantissa[1:]
	}
	whole, frac, _ := strings.Cut(mantissa, ".")
	if whole+frac == "" || digits(whole) != len(whole) || digits(frac) != len(frac) {
		return invalid()
	}
	if exponent > math.MaxInt32/2 || exponent < -math.MaxInt32/2 {
		return Null, errNumericOverflow
	}
	coeff, _ := new(big.Int).SetString(whole+frac, 10)
	scale := int64(len(frac)) - exponent
	switch {
	case scale < 0 && -scale > maxNumericWeight && coeff.Sign() != 0:
		return Null, errNumericOverflow
	case scale < 0:
		if coeff.Sign() != 0 {
			coeff.Mul(coeff, pow10(int32(-scale)))
		}
		scale = 0
	case scale > maxNumericScale:
		return Null, errNumericOverflow
	}
	if negative {
		coeff.Neg(coeff)
	}
	return checkNumeric(newDecimal(coeff, int32(scale)))
}

func appendNumeric(dst []byte, d *apd.Decimal) []byte {
	switch d.Form {
	case apd.NaN, apd.NaNSignaling:
		return append(dst, "NaN"...)
	case apd.Infinite:
		if d.Negative {
			return append(dst, "-Infinity"...)
		}
		return append(dst, "Infinity"...)
	}
	if d.Negative && d.Coeff.Sign() != 0 {
		dst = append(dst, '-')
	}
	text := d.Coeff.String()
	scale := int(-d.Exponent)
	if scale <= 0 {
		return append(dst, text...)
	}
	for len(text) <= scale {
		text = strings.Repeat("0", scale+1-len(text)) + text
	}
	dst = append(dst, text[:len(text)-scale]...)
	dst = append(dst, '.')
	return append(dst, text[len(text)-scale:]...)
}

func special(ds ...*apd.Decimal) bool {
	for _, d := range ds {
		if d.Form != apd.Finite {
			return true
		}
	}
	return false
}

func nan() *apd.Decimal { return &apd.Decimal{Form: apd.NaN} }

func infinite(negative bool) *apd.Decimal {
	return &apd.Decimal{Form: apd.Infinite, Negative: negative}
}

func isNaN(d *apd.Decimal) bool { return d.Form == apd.NaN || d.Form == apd.NaNSignaling }

// align brings two finite numerics to one scale.
func align(a, b *apd.Decimal) (x, y *big.Int, scale int32) {
	x, y = signed(a), signed(b)
	switch {
	case a.Exponent > b.Exponent:
		x = new(big.Int).Mul(x, pow10(a.Exponent-b.Exponent))
	case b.Exponent > a.Exponent:
		y = new(big.Int).Mul(y, pow10(b.Exponent-a.Exponent))
	}
	return x, y, -min(a.Exponent, b.Exponent)
}

// NumericAdd gives a + b.
func NumericAdd(a, b *apd.Decimal) (Datum, error) {
	if special(a, b) {
		switch {
		case isNaN(a) || isNaN(b), a.Form == apd.Infinite && b.Form == apd.Infinite && a.Negative != b.Negative:
			return Numeric(nan()), nil
		case a.Form == apd.Infinite:
			return Numeric(a), nil
		}
		return Numeric(b), nil
	}
	x, y, scale := align(a, b)
	return checkNumeric(newDecimal(new(big.Int).Add(x, y), scale))
}

// NumericNeg gives -a.
func NumericNeg(a *apd.Decimal) Datum {
	c := *a
	if a.Form == apd.Infinite || a.Form == apd.Finite && a.Coeff.Sign() != 0 {
		c.Negative = !a.Negative
	}
	return Numeric(&c)
}

// NumericSub gives a - b.
func NumericSub(a, b *apd.Decimal) (Datum, error) { return NumericAdd(a, NumericNeg(b).Numeric()) }

// NumericSign gives -1, 0 or 1; a NaN has none and gives 0.
func NumericSign(a *apd.Decimal) int {
	if isNaN(a) {
		return 0
	}
	return a.Sign()
}

// NumericMul gives a * b.
func NumericMul(a, b *apd.Decimal) (Datum, error) {
	if special(a, b) {
		if isNaN(a) || isNaN(b) || NumericSign(a) == 0 || NumericSign(b) == 0 {
			return Numeric(nan()), nil
		}
		return Numeric(infinite(NumericSign(a) != NumericSign(b))), nil
	}
	scale := -(a.Exponent + b.Exponent)
	product := new(big.Int).Mul(signed(a), signed(b))
	if scale > maxNumericScale {
		product, scale = rescale(product, scale, maxNumericScale), maxNumericScale
	}
	return checkNumeric(newDecimal(product, scale))
}

// rescale changes a coefficient's scale, rounding half away from zero.
func rescale(coeff *big.Int, from, to int32) *big.Int {
	if to >= from {
		return new(big.Int).Mul(coeff, pow10(to-from))
	}
	return divRound(coeff, pow10(from-to))
}

// divRound gives a/b rounded half away from zero.
func divRound(a, b *big.Int) *big.Int {
	q, r := new(big.Int).QuoRem(a, b, new(big.Int))
	if r.Abs(r).Lsh(r, 1).CmpAbs(b) >= 0 {
		if a.Sign()*b.Sign() < 0 {
			return q.Sub(q, big.NewInt(1))
		}
		return q.Add(q, big.NewInt(1))
	}
	return q
}

// base10000 gives the weight (in base-10000 digits) and the first such digit of a finite numeric, as the server keeps
// them: they decide the scale of quotients.
func base10000(d *apd.Decimal) (weight int, first int) {
	if d.Coeff.Sign() == 0 {
		return 0, 0
	}
	text := d.Coeff.String()
	leading := len(text) + int(d.Exponent) - 1 // power of ten of the first digit
	weight = int(math.Floor(float64(leading) / decDigits))
	n := leading - weight*decDigits + 1 // decimal digits in the first base-10000 digit
	for len(text) < n {
		text += "0"
	}
	first, _ = strconv.Atoi(text[:n])
	return weight, first
}

// divScale is select_div_scale of the server.
func divScale(a, b *apd.Decimal) int32 {
	wa, fa := base10000(a)
	wb, fb := base10000(b)
	q := wa - wb
	if fa <= fb {
		q--
	}
	scale := int32(minSigDigits - q*decDigits)
	scale = max(scale, -a.Exponent, -b.Exponent, 0)
	return min(scale, maxDisplayScale)
}

func errDivisionByZero() error { return pgerr.New(pgerr.DivisionByZero, "division by zero") }

// NumericDiv gives a / b.
func NumericDiv(a, b *apd.Decimal) (Datum, error) {
	if special(a, b) {
		switch {
		case isNaN(a) || isNaN(b) || a.Form == apd.Infinite && b.Form == apd.Infinite:
			return Numeric(nan()), nil
		case a.Form == apd.Infinite:
			if NumericSign(b) == 0 {
				return Null, errDivisionByZero()
			}
			return Numeric(infinite(NumericSign(a) != NumericSign(b))), nil
		}
		return NumericFromInt(0), nil
	}
	if b.Coeff.Sign() == 0 {
		return Null, errDivisionByZero()
	}
	scale := divScale(a, b)
	// a/b = (ca*10^(ea)) / (cb*10^(eb)); want the quotient at 10^-scale.
	shift := scale + a.Exponent - b.Exponent
	x, y := signed(a), signed(b)
	if shift >= 0 {
		x = new(big.Int).Mul(x, pow10(shift))
	} else {
		y = new(big.Int).Mul(y, pow10(-shift))
	}
	return checkNumeric(newDecimal(divRound(x, y), scale))
}

// NumericMod gives a % b, truncated towards zero.
func NumericMod(a, b *apd.Decimal) (Datum, error) {
	if special(a, b) {
		switch {
		case isNaN(a) || isNaN(b):
			return Numeric(nan()), nil
		case a.Form == apd.Infinite:
			if NumericSign(b) == 0 {
				return Null, errDivisionByZero()
			}
			return Numeric(nan()), nil
		}
		return Numeric(a), nil
	}
	if b.Coeff.Sign() == 0 {
		return Null, errDivisionByZero()
	}
	x, y, scale := align(a, b)
	return checkNumeric(newDecimal(new(big.Int).Rem(x, y), scale))
}

// NumericQuotient gives trunc(a / b) with scale 0 (the div function).
func NumericQuotient(a, b *apd.Decimal) (Datum, error) {
	if special(a, b) {
		return NumericDiv(a, b)
	}
	if b.Coeff.Sign() == 0 {
		return Null, errDivisionByZero()
	}
	x, y, _ := align(a, b)
	return checkNumeric(newDecimal(new(big.Int).Quo(x, y), 0))
}

// NumericRound rounds half away from zero to scale digits after the point (before it when negative).
func NumericRound(a *apd.Decimal, scale int32) (Datum, error) {
	return numericCut(a, scale, divRound)
}

// NumericTrunc cuts to scale digits after the point.
func NumericTrunc(a *apd.Decimal, scale int32) (Datum, error) {
	return numericCut(a, scale, func(x, y *big.Int) *big.Int { return new(big.Int).Quo(x, y) })
}

func numericCut(a *apd.Decimal, scale int32, div func(x, y *big.Int) *big.Int) (Datum, error) {
	if special(a) {
		return Numeric(a), nil
	}
	scale = min(max(scale, -maxNumericWeight), maxNumericScale)
	have, coeff := -a.Exponent, signed(a)
	switch {
	case scale >= have:
		coeff = rescale(coeff, have, scale)
	default:
		coeff = div(coeff, pow10(have-scale))
	}
	if scale < 0 {
		coeff, scale = new(big.Int).Mul(coeff, pow10(-scale)), 0
	}
	return checkNumeric(newDecimal(coeff, scale))
}

// NumericFloor gives the largest integer not above a.
func NumericFloor(a *apd.Decimal) (Datum, error) {
	return numericCut(a, 0, func(x, y *big.Int) *big.Int {
		q, m := new(big.Int).QuoRem(x, y, new(big.Int))
		if m.Sign() < 0 {
			q.Sub(q, big.NewInt(1))
		}
		return q
	})
}

// NumericCeil gives the smallest integer not below a.
func NumericCeil(a *apd.Decimal) (Datum, error) {
	d, err := NumericFloor(NumericNeg(a).Numeric())
	if err != nil {
		return Null, err
	}
	return NumericNeg(d.Numeric()), nil
}

// NumericToInt rounds to an integer of the named type; ok is false when it is not finite or does not fit an int64.
func NumericToInt(a *apd.Decimal) (i int64, ok bool) {
	if special(a) {
		return 0, false
	}
	c := rescale(signed(a), -a.Exponent, 0)
	return c.Int64(), c.IsInt64()
}

// NumericToFloat gives the nearest float8.
func NumericToFloat(a *apd.Decimal) (float64, error) {
	f, err := strconv.ParseFloat(string(appendNumeric(nil, a)), 64)
	if err != nil || f == 0 && NumericSign(a) != 0 {
		return 0, pgerr.New(pgerr.NumericValueOutOfRange, "\"%s\" is out of range for type double precision",
			string(appendNumeric(nil, a)))
	}
	return f, nil
}

// NumericFromFloat converts with the given number of significant digits (15 for float8, 6 for float4), as the
// server's casts do.
func NumericFromFloat(f float64, significant int) (Datum, error) {
	switch {
	case math.IsNaN(f):
		return Numeric(nan()), nil
	case math.IsInf(f, 0):
		return Numeric(infinite(f < 0)), nil
	}
	text := strconv.FormatFloat(f, 'e', significant-1, 64) // %g of C: no trailing zeros
	digits, exponent, _ := strings.Cut(text, "e")
	return parseNumeric(strings.TrimSuffix(strings.TrimRight(digits, "0"), ".") + "e" + exponent)
}

// NumericTypmod splits a numeric's modifier.
func NumericTypmod(typmod int32) (precision, scale int32) {
	m := typmod - 4
	return m >> 16 & 0xffff, (m&0x7ff ^ 1024) - 1024
}

// MakeNumericTypmod makes a numeric's modifier.
func MakeNumericTypmod(precision, scale int32) int32 { return precision<<16 | scale&0x7ff + 4 }

// NumericFit applies a numeric's modifier: rounds, and refuses what does not fit.
func NumericFit(a *apd.Decimal, typmod int32) (Datum, error) {
	if typmod < 4 || isNaN(a) {
		return Numeric(a), nil
	}
	precision, scale := NumericTypmod(typmod)
	overflow := func(detail string, args ...any) error {
		return pgerr.New(pgerr.NumericValueOutOfRange, "numeric field overflow").WithDetail(detail, args...)
	}
	if a.Form == apd.Infinite {
		return Null, overflow("A field with precision %d, scale %d cannot hold an infinite value.", precision, scale)
	}
	d, err := NumericRound(a, scale)
	if err != nil {
		return Null, err
	}
	r := d.Numeric()
	if r.Coeff.Sign() != 0 && r.NumDigits()+int64(r.Exponent) > int64(precision-scale) {
		limit := "1"
		if precision != scale {
			limit = "10^" + strconv.Itoa(int(precision-scale))
		}
		return Null, overflow("A field with precision %d, scale %d must round to an absolute value less than %s.",
			precision, scale, limit)
	}
	return d, nil
}

// CompareNumeric orders as Postgres: NaN equals itself and is above all else.
func CompareNumeric(a, b *apd.Decimal) int {
	if special(a, b) {
		rank := func(d *apd.Decimal) int {
			switch {
			case isNaN(d):
				return 2
			case d.Form == apd.Finite:
				return 0
			case d.Negative:
				return -1
			}
			return 1
		}
		return rank(a) - rank(b)
	}
	if a.Exponent == b.Exponent && a.Negative == b.Negative && !a.Negative {
		return a.Coeff.Cmp(&b.Coeff)
	}
	x, y, _ := align(a, b)
	return x.Cmp(y)
}

// NumericSqrt gives the square root with the server's choice of scale.
func NumericSqrt(a *apd.Decimal) (Datum, error) {
	if special(a) {
		if a.Form == apd.Infinite && a.Negative {
			return Null, errNegativeRoot
		}
		return Numeric(a), nil
	}
	if a.Negative && a.Coeff.Sign() != 0 {
		return Null, errNegativeRoot
	}
	weight, _ := base10000(a)
	sweight := weight*decDigits/2 + 1
	if weight < 0 {
		sweight = 1 - (-weight*decDigits+1)/2
	}
	scale := int32(minSigDigits - sweight)
	scale = min(max(scale, -a.Exponent, 0), maxDisplayScale)
	return Numeric(newDecimal(sqrtAt(a, scale), scale)), nil
}

var errNegativeRoot = pgerr.New("2201F", "cannot take square root of a negative number")

// sqrtAt gives the root's coefficient at a scale, rounded half up.
func sqrtAt(a *apd.Decimal, scale int32) *big.Int {
	shift := 2*(scale+1) + a.Exponent // one more digit, to round by
	c := signed(a)
	if shift >= 0 {
		c = new(big.Int).Mul(c, pow10(shift))
	} else {
		c = new(big.Int).Quo(c, pow10(-shift))
	}
	return divRound(new(big.Int).Sqrt(c), big.NewInt(10))
}

// NumericVariance gives the variance (root: the standard deviation) of n values from their sum and sum of squares.
func NumericVariance(n int64, sum, squares *apd.Decimal, population, root bool) (Datum, error) {
	if special(sum, squares) {
		return Numeric(nan()), nil
	}
	divisor := n * (n - 1)
	if population {
		divisor = n * n
	}
	count := apd.New(n, 0)
	square, err := NumericMul(sum, sum)
	if err != nil {
		return Null, err
	}
	scaled, err := NumericMul(count, squares)
	if err != nil {
		return Null, err
	}
	top, err := NumericSub(scaled.Numeric(), square.Numeric())
	if err != nil {
		return Null, err
	}
	if top.Numeric().Sign() <= 0 {
		return NumericFromInt(0), nil
	}
	v, err := NumericDiv(top.Numeric(), apd.New(divisor, 0))
	if err != nil || !root {
		return v, err
	}
	scale := -v.Numeric().Exponent
	return Numeric(newDecimal(sqrtAt(v.Numeric(), scale), scale)), nil
}
