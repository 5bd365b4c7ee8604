//go:build !linux

package postgres

import "syscall"

// Only Linux can send a child a signal when its parent dies; elsewhere Close has to be called.
func setOrphanSignal(*syscall.SysProcAttr, syscall.Signal) {}
