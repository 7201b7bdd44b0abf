//go:build !linux

package diskguard

import "errors"

func look(string) (Space, error) { return Space{}, errors.ErrUnsupported }
