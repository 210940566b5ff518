package clientconfig

import (
	"errors"
	"fmt"
	"strings"
)

// login is one entry of sasl.jaas.config:
//
//	module flag (name=value)* ;
//
// All option values are secrets, the user name too: what is not printed
// cannot be printed by mistake.
type login struct {
	module  string
	options map[string]Secret
}

// jaasToken is a word, a quoted string, or one of '=' and ';'.
type jaasToken struct {
	kind  byte // 'w', 'q', '=', ';', 0 at the end
	value Secret
}

// parseJAAS reads exactly one login module, as Kafka demands. It follows the
// tokenizer that Java's clients use: both kinds of quotes, C escapes inside
// them, // and /* comments. Errors name the place, never a value.
func parseJAAS(text string) (*login, error) {
	s := &jaasScanner{text: text}
	module, err := s.next()
	if err != nil {
		return nil, err
	}
	if module.kind != 'w' {
		return nil, errors.New("does not begin with the name of a login module")
	}
	flag, err := s.next()
	if err != nil {
		return nil, err
	}
	switch strings.ToLower(flag.value.Reveal()) {
	case "required", "requisite", "sufficient", "optional":
	default:
		return nil, errors.New("has no control flag (required) after the login module")
	}
	l := &login{module: module.value.Reveal(), options: map[string]Secret{}}
	for {
		name, err := s.next()
		if err != nil {
			return nil, err
		}
		switch name.kind {
		case ';':
			return l, s.end()
		case 0:
			return nil, errors.New("does not end with a semicolon")
		case '=':
			return nil, errors.New("has an equals sign without an option name")
		}
		if err := s.option(l, name.value.Reveal()); err != nil {
			return nil, err
		}
	}
}

// option reads "= value" after an option's name. The name is not printed: a
// password with a blank and without quotes would be taken for one.
func (s *jaasScanner) option(l *login, name string) error {
	n := len(l.options) + 1
	if eq, err := s.next(); err != nil {
		return err
	} else if eq.kind != '=' {
		return fmt.Errorf("option %d is not name=value (values with blanks or special characters need quotes)", n)
	}
	value, err := s.next()
	if err != nil {
		return err
	}
	if value.kind != 'w' && value.kind != 'q' {
		return fmt.Errorf("option %d has no value", n)
	}
	if _, twice := l.options[name]; twice {
		return fmt.Errorf("option %d repeats the name of an earlier one", n)
	}
	l.options[name] = value.value
	return nil
}

type jaasScanner struct {
	text string
	pos  int
}

func (s *jaasScanner) end() error {
	t, err := s.next()
	if err != nil {
		return err
	}
	if t.kind != 0 {
		return errors.New("has more than one login module")
	}
	return nil
}

func (s *jaasScanner) next() (jaasToken, error) {
	if err := s.skip(); err != nil {
		return jaasToken{}, err
	}
	if s.pos >= len(s.text) {
		return jaasToken{}, nil
	}
	switch c := s.text[s.pos]; c {
	case '=', ';':
		s.pos++
		return jaasToken{kind: c}, nil
	case '"', '\'':
		return s.quoted(c)
	}
	start := s.pos
	for s.pos < len(s.text) && !strings.ContainsRune(" \t\r\n\f=;\"'", rune(s.text[s.pos])) {
		s.pos++
	}
	return jaasToken{'w', Secret(s.text[start:s.pos])}, nil
}

// skip passes over blanks and comments.
func (s *jaasScanner) skip() error {
	for s.pos < len(s.text) {
		rest := s.text[s.pos:]
		switch {
		case strings.ContainsRune(" \t\r\n\f", rune(rest[0])):
			s.pos++
		case strings.HasPrefix(rest, "//"):
			if i := strings.IndexByte(rest, '\n'); i >= 0 {
				s.pos += i + 1
			} else {
				s.pos = len(s.text)
			}
		case strings.HasPrefix(rest, "/*"):
			i := strings.Index(rest[2:], "*/")
			if i < 0 {
				return errors.New("has a comment without an end")
			}
			s.pos += i + 4
		default:
			return nil
		}
	}
	return nil
}

func (s *jaasScanner) quoted(quote byte) (jaasToken, error) {
	var b strings.Builder
	for s.pos++; s.pos < len(s.text); s.pos++ {
		c := s.text[s.pos]
		switch {
		case c == quote:
			s.pos++
			return jaasToken{'q', Secret(b.String())}, nil
		case c == '\n' || c == '\r':
			return jaasToken{}, errors.New("has a quoted value that does not end on its line")
		case c == '\\' && s.pos+1 < len(s.text):
			s.pos++
			s.escape(&b)
		default:
			b.WriteByte(c)
		}
	}
	return jaasToken{}, errors.New("has a quoted value without a closing quote")
}

// escape writes what stands behind a backslash: a C escape, up to three octal
// digits, or the character itself.
func (s *jaasScanner) escape(b *strings.Builder) {
	c := s.text[s.pos]
	if i := strings.IndexByte("abfnrtv", c); i >= 0 {
		b.WriteByte("\a\b\f\n\r\t\v"[i])
		return
	}
	if c < '0' || c > '7' {
		b.WriteByte(c)
		return
	}
	limit := 2
	if c <= '3' {
		limit = 3
	}
	v := rune(0)
	for n := 0; n < limit && s.pos < len(s.text) && s.text[s.pos] >= '0' && s.text[s.pos] <= '7'; n++ {
		v = v*8 + rune(s.text[s.pos]-'0')
		s.pos++
	}
	s.pos--
	b.WriteRune(v)
}
