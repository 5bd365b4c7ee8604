package database

import (
	"testing"

	"shardedjob.dev/hack/postgres"
)

func TestMain(m *testing.M) { postgres.Main(m) }
