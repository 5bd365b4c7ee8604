package main

import (
	"context"
	"os"

	"shardedjob.dev/hack/netns"
)

// cableBlock holds the addresses of both ends of all cables.
const cableBlock = netns.Block

// canCut says whether cables can be laid here.
func canCut() bool { return os.Geteuid() == 0 }

// layCable returns a cable to a machine, and this one's address as seen from there.
func layCable(ctx context.Context) (cable, string, error) {
	c, err := netns.New(ctx)
	if err != nil {
		return nil, "", err
	}
	return c, c.Outside().String(), nil
}
