//go:build !linux

package main

import (
	"context"
	"errors"
)

const cableBlock = ""

// canCut: there are no network namespaces here.
func canCut() bool { return false }

func layCable(context.Context) (cable, string, error) {
	return nil, "", errors.New("only Linux has cables that can be cut")
}
