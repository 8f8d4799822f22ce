package hba

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Maps are maps of names in certificates to roles, by their own names.
type Maps map[string][]mapping

// mapping is one line of a map: who is system may be role.
type mapping struct {
	system string
	match  *regexp.Regexp // in place of system
	role   Name
}

// ParseMaps reads a file in the form of pg_ident.conf.
func ParseMaps(text string) (maps Maps, problems []error) {
	maps = Maps{}
	lines(text, func(number int, line string) {
		list, err := fields(line)
		if err == nil && len(list) > 0 {
			err = maps.add(list)
		}
		if err != nil {
			problems = append(problems, &LineError{number, err})
		}
	})
	return maps, problems
}

func (m Maps) add(list []field) error {
	if len(list) != 3 {
		return errors.New("a line has the map's name, a name in certificates and a role")
	}
	for _, f := range list {
		if len(f) != 1 {
			return errors.New("commas are not allowed")
		}
	}
	system := list[1][0]
	one := mapping{system: system.text}
	var err error
	if !system.quoted && strings.HasPrefix(system.text, "/") {
		if one.match, err = compile(system.text); err != nil {
			return err
		}
	}
	roles, err := parseNames(list[2], userKeywords)
	if err != nil {
		return err
	}
	one.role = roles[0]
	if strings.Contains(one.role.Text, `\1`) && (one.match == nil || one.match.NumSubexp() == 0) {
		return fmt.Errorf(`%q refers to a part of a regular expression, and there is none`, one.role.Text)
	}
	name := list[0][0].text
	m[name] = append(m[name], one)
	return nil
}

// Allows reports whether the map lets system be the role. The map named "" lets everybody be the role of their name.
func (m Maps) Allows(name, system, role string, memberOf func(string) bool) bool {
	if name == "" {
		return system == role
	}
	for i := range m[name] {
		if m[name][i].allows(system, role, memberOf) {
			return true
		}
	}
	return false
}

func (l *mapping) allows(system, role string, memberOf func(string) bool) bool {
	want := l.role.Text
	if l.match == nil {
		if l.system != system {
			return false
		}
	} else {
		parts := l.match.FindStringSubmatch(system)
		if parts == nil {
			return false
		}
		if len(parts) > 1 {
			want = strings.Replace(want, `\1`, parts[1], 1)
		}
	}
	switch l.role.Kind {
	case All:
		return true
	case Group:
		return memberOf(want)
	case Matching:
		return l.role.match.MatchString(role)
	}
	return want == role
}
