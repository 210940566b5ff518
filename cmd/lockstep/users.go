package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"

	"github.com/lockstep-kafka/lockstep/internal/clientconfig"
	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// firstUser is one --add-scram: a user who has to be there before anybody can log in
// to add others.
type firstUser struct {
	name       string
	mechanism  metadata.ScramMechanism
	iterations int32
	password   clientconfig.Secret
}

// parseFirstUser reads what kafka-storage.sh takes, and a file for the password, which
// other users of the machine do not see in the list of processes:
//
//	SCRAM-SHA-256=[name=admin,password=secret]
//	SCRAM-SHA-512=[name=admin,password-file=/etc/lockstep/admin.password,iterations=8192]
//
// No error repeats a value.
func parseFirstUser(text string) (*firstUser, error) {
	mechanism, rest, _ := strings.Cut(text, "=")
	u := &firstUser{mechanism: metadata.ParseScramMechanism(mechanism), iterations: metadata.MinScramIterations}
	if u.mechanism == 0 {
		return nil, errors.New("--add-scram: want SCRAM-SHA-256=[…] or SCRAM-SHA-512=[…]")
	}
	rest, ok := strings.CutPrefix(rest, "[")
	rest, ok2 := strings.CutSuffix(rest, "]")
	if !ok || !ok2 {
		return nil, fmt.Errorf("--add-scram: want %s=[name=…,password=…]", mechanism)
	}
	for i, field := range splitOutsideQuotes(rest) {
		key, value, _ := strings.Cut(field, "=")
		if v, ok := strings.CutPrefix(value, `"`); ok {
			value = strings.TrimSuffix(v, `"`)
		}
		switch strings.TrimSpace(key) {
		case "name":
			u.name = value
		case "password":
			u.password = clientconfig.Secret(value)
		case "password-file":
			b, err := os.ReadFile(value)
			if err != nil {
				return nil, fmt.Errorf("--add-scram: password-file: %w", err)
			}
			u.password = clientconfig.Secret(strings.TrimRight(string(b), "\r\n"))
		case "iterations":
			n, err := strconv.ParseInt(value, 10, 32)
			if err != nil || n < metadata.MinScramIterations || n > metadata.MaxScramIterations {
				return nil, fmt.Errorf("--add-scram: iterations: want a number from %d to %d", metadata.MinScramIterations, metadata.MaxScramIterations)
			}
			u.iterations = int32(n)
		default:
			return nil, fmt.Errorf("--add-scram: field %d is none of name, password, password-file, iterations", i+1)
		}
	}
	if u.name == "" || u.password == "" {
		return nil, errors.New("--add-scram: name and a password are needed")
	}
	return u, nil
}

func splitOutsideQuotes(s string) []string {
	quoted := false
	return strings.FieldsFunc(s, func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return r == ',' && !quoted
	})
}

// addFirstUsers adds those who are not there. A user who is keeps the credential: it
// may have been changed since the command line was written.
func addFirstUsers(ctx context.Context, c *controller.Controller, users []*firstUser, logger *slog.Logger) error {
	for _, u := range users {
		if c.Image().Scram(u.name, u.mechanism) != nil {
			logger.Info("a user of --add-scram is there already and stays as it is", "user", u.name, "mechanism", u.mechanism.String())
			continue
		}
		random := make([]byte, 32)
		rand.Read(random)
		salt := metadata.ScramSalt(random)
		salted, err := u.mechanism.SaltedPassword(u.password.Reveal(), salt, int(u.iterations))
		if err != nil {
			return fmt.Errorf("--add-scram: user %q: %w", u.name, err)
		}
		cred := metadata.NewScramCredential(u.name, u.mechanism, u.iterations, salt, salted)
		if err := c.AlterScram(ctx, []controller.AlterScram{{User: u.name, Puts: []*metadata.ScramCredential{cred}}})[0]; err != nil {
			return fmt.Errorf("--add-scram: %w", err)
		}
		logger.Info("added a user", "user", u.name, "mechanism", u.mechanism.String())
	}
	return nil
}
