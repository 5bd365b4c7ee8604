//go:build race

package model

const walks, cursorWalks = 60, 150

var (
	largeGuards []guard
	large       []instance
)
