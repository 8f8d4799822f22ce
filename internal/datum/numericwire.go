package datum

import (
	"encoding/binary"
	"math/big"
	"strconv"
	"strings"

	"github.com/cockroachdb/apd/v3"

	"neki/internal/pgerr"
)

func appendNumericBinary(dst []byte, d *apd.Decimal) []byte {
	header := func(ndigits, weight int, sign, dscale uint16) {
		dst = binary.BigEndian.AppendUint16(dst, uint16(ndigits))
		dst = binary.BigEndian.AppendUint16(dst, uint16(weight))
		dst = binary.BigEndian.AppendUint16(dst, sign)
		dst = binary.BigEndian.AppendUint16(dst, dscale)
	}
	switch {
	case isNaN(d):
		header(0, 0, 0xC000, 0)
		return dst
	case d.Form == apd.Infinite && d.Negative:
		header(0, 0, 0xF000, 0x20)
		return dst
	case d.Form == apd.Infinite:
		header(0, 0, 0xD000, 0x20)
		return dst
	}
	scale := int(-d.Exponent)
	text := d.Coeff.String()
	if len(text) < scale+1 {
		text = strings.Repeat("0", scale+1-len(text)) + text
	}
	whole, frac := text[:len(text)-scale], text[len(text)-scale:]
	whole = strings.Repeat("0", (decDigits-len(whole)%decDigits)%decDigits) + whole
	frac += strings.Repeat("0", (decDigits-len(frac)%decDigits)%decDigits)
	weight := len(whole)/decDigits - 1
	all := whole + frac
	for len(all) > 0 && all[:decDigits] == "0000" {
		all, weight = all[decDigits:], weight-1
	}
	for len(all) > 0 && all[len(all)-decDigits:] == "0000" {
		all = all[:len(all)-decDigits]
	}
	if all == "" {
		weight = 0
	}
	sign := uint16(0)
	if d.Negative && all != "" {
		sign = 0x4000
	}
	header(len(all)/decDigits, weight, sign, uint16(scale))
	for i := 0; i < len(all); i += decDigits {
		n, _ := strconv.Atoi(all[i : i+decDigits])
		dst = binary.BigEndian.AppendUint16(dst, uint16(n))
	}
	return dst
}

func parseNumericBinary(data []byte) (Datum, error) {
	if len(data) < 8 {
		return Null, errBinary(NumericOID)
	}
	ndigits := int(binary.BigEndian.Uint16(data))
	weight := int(int16(binary.BigEndian.Uint16(data[2:])))
	sign, dscale := binary.BigEndian.Uint16(data[4:]), int32(binary.BigEndian.Uint16(data[6:]))
	if len(data) != 8+2*ndigits {
		return Null, errBinary(NumericOID)
	}
	switch sign {
	case 0xC000:
		return Numeric(nan()), nil
	case 0xD000, 0xF000:
		return Numeric(infinite(sign == 0xF000)), nil
	case 0, 0x4000:
	default:
		return Null, pgerr.New(pgerr.InvalidBinaryRepresentation, "invalid sign in external \"numeric\" value")
	}
	if dscale > maxNumericScale {
		return Null, pgerr.New(pgerr.InvalidBinaryRepresentation, "invalid scale in external \"numeric\" value")
	}
	if weight >= maxNumericWeight/decDigits || weight < -maxNumericScale {
		return Null, errNumericOverflow
	}
	coeff := new(big.Int)
	base := big.NewInt(10000)
	for i := range ndigits {
		digit := binary.BigEndian.Uint16(data[8+2*i:])
		if digit >= 10000 {
			return Null, pgerr.New(pgerr.InvalidBinaryRepresentation, "invalid digit in external \"numeric\" value")
		}
		coeff.Mul(coeff, base).Add(coeff, big.NewInt(int64(digit)))
	}
	// The coefficient stands at 10000^(weight-ndigits+1); bring it to 10^-dscale, cutting what is below.
	exp := (weight - ndigits + 1) * decDigits
	if shift := exp + int(dscale); shift >= 0 {
		coeff.Mul(coeff, pow10(int32(shift)))
	} else {
		coeff.Quo(coeff, pow10(int32(-shift)))
	}
	if sign == 0x4000 {
		coeff.Neg(coeff)
	}
	return checkNumeric(newDecimal(coeff, dscale))
}
