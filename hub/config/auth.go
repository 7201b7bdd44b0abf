package config

import (
	"errors"
	"fmt"

	"edgehub/hub/auth"
)

func checkUsersFile(path string) (what, cure string) {
	return authProblem(path, func(text string) error {
		_, err := auth.ParseUsers(path, text)
		return err
	})
}

func checkACLFile(path string) (what, cure string) {
	return authProblem(path, func(text string) error {
		_, err := auth.ParseACL(path, text)
		return err
	})
}

// authProblem is the first problem of a users or ACL file: an error in it is an error of the configuration.
func authProblem(path string, parse func(text string) error) (what, cure string) {
	if what, cure := fileProblem(path); what != "" {
		return what, cure
	}
	text, err := auth.ReadFile(path)
	if err == nil {
		err = parse(text)
	}
	var bad auth.Problems
	switch {
	case err == nil:
		return "", ""
	case !errors.As(err, &bad):
		return err.Error(), "mend the file"
	}
	what, cure = bad[0].What, bad[0].Cure
	if bad[0].Line > 0 {
		what = fmt.Sprintf("line %d of %s: %s", bad[0].Line, quote(path), what)
	}
	if len(bad) > 1 {
		what += fmt.Sprintf(" (and %d more)", len(bad)-1)
	}
	return what, cure
}
