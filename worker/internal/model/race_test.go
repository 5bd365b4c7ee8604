//go:build race

package model

const walks = 60

var large []instance
