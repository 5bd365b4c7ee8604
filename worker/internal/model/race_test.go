//go:build race

package model

const walks = 150

var large []instance
