package authn

import (
	"crypto/x509"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Rules make a principal's name of a certificate's subject:
// ssl.principal.mapping.rules. Nil is DEFAULT, the subject itself.
type Rules []rule

type rule struct {
	pattern     *regexp.Regexp // nil: DEFAULT
	replacement string
	fold        func(string) string
}

// ruleSyntax is one rule and the comma behind it. A slash inside of the pattern or
// the replacement is written \/.
var ruleSyntax = regexp.MustCompile(`^\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)`)

// ParseRules reads a list of RULE:pattern/replacement/[LU] and DEFAULT.
func ParseRules(text string) (Rules, error) {
	var rules Rules
	for n := 1; strings.TrimSpace(text) != ""; n++ {
		m := ruleSyntax.FindStringSubmatch(text)
		if m == nil {
			return nil, fmt.Errorf("rule %d: want DEFAULT or RULE:pattern/replacement/ with L or U behind it, not %q", n, text)
		}
		text = text[len(m[0]):]
		if m[1] != "" {
			rules = append(rules, rule{})
			continue
		}
		pattern, err := regexp.Compile(`^(?:` + m[2] + `)$`)
		if err != nil {
			return nil, fmt.Errorf("rule %d: %w", n, err)
		}
		r := rule{pattern: pattern, replacement: m[3], fold: func(s string) string { return s }}
		switch m[4] {
		case "L":
			r.fold = strings.ToLower
		case "U":
			r.fold = strings.ToUpper
		}
		rules = append(rules, r)
	}
	return rules, nil
}

// Name is the principal's name of a client's certificate: what the first rule that
// matches its whole subject makes of it.
func (rules Rules) Name(cert *x509.Certificate) (string, error) {
	subject, err := distinguishedName(cert)
	if err != nil {
		return "", err
	}
	return rules.apply(subject)
}

func (rules Rules) apply(subject string) (string, error) {
	if len(rules) == 0 {
		return subject, nil
	}
	for _, r := range rules {
		if r.pattern == nil {
			return subject, nil
		}
		if m := r.pattern.FindStringSubmatch(subject); m != nil {
			if name := r.fold(expand(r.replacement, m)); name != "" {
				return name, nil
			}
		}
	}
	return "", fmt.Errorf("no rule of ssl.principal.mapping.rules makes a name of %q", subject)
}

// expand puts groups in place of $1, $2, …, as Java does: a number with no such
// group is a dollar sign and digits, and a backslash takes the next character as it
// is.
func expand(replacement string, groups []string) string {
	var b strings.Builder
	for i := 0; i < len(replacement); i++ {
		switch c := replacement[i]; {
		case c == '\\' && i+1 < len(replacement):
			i++
			b.WriteByte(replacement[i])
		case c == '$':
			end := i + 1
			for end < len(replacement) && replacement[end] >= '0' && replacement[end] <= '9' {
				end++
			}
			// As many digits as still name a group.
			n := -1
			for ; end > i+1; end-- {
				if v, err := strconv.Atoi(replacement[i+1 : end]); err == nil && v < len(groups) {
					n = v
					break
				}
			}
			if n < 0 {
				b.WriteByte(c)
				continue
			}
			b.WriteString(groups[n])
			i = end - 1
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}
