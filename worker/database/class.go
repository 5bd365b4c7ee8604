package database

import (
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// Class says what kind of failure an error is, and so what to do about it.
type Class int

const (
	// ClassOutage passes by itself, or with the database: back off and try again, no row is to blame. It is also what
	// an error is that nothing is known of.
	ClassOutage Class = iota
	// ClassConfig needs a person: credentials, privileges, names or SQL are wrong for every row.
	ClassConfig
	// ClassRow can be one row's fault: split the batch to find it.
	ClassRow
	// ClassTimeout means that the statement took too long: try fewer rows.
	ClassTimeout
)

// String is the class in one word, for logs.
func (c Class) String() string {
	switch c {
	case ClassConfig:
		return "config"
	case ClassRow:
		return "row"
	case ClassTimeout:
		return "timeout"
	default:
		return "outage"
	}
}

// The table of SQLSTATEs: a whole code goes before its two-letter class, and what stands in neither is ClassRow,
// because functions and triggers raise codes of their own and one row can make them do so.
//
// Internal errors (XX) count as the row's: extensions report bad values so, and a row is tried several times
// anyway. The same holds for corruption, which is met in one row and not in its neighbors.
var (
	classOfCode = map[string]Class{
		"25006": ClassOutage, // read-only transaction: a failover is under way
		"25P03": ClassOutage, // idle in transaction for too long: this process was stopped
		"25P04": ClassTimeout,
		"26000": ClassOutage, // a prepared statement is gone: the session is not what it was
		"34000": ClassOutage, // likewise a cursor
		"40002": ClassRow,    // constraint violation, found late
		"53400": ClassRow,    // temp_file_limit: fewer rows may need less room
		"55006": ClassOutage, // object in use
		"55P03": ClassOutage, // lock not available: lock_timeout
		"57014": ClassTimeout,
		"57P04": ClassConfig, // database dropped
		"72000": ClassOutage, // snapshot too old
	}
	classOfClass = map[string]Class{
		"08": ClassOutage, // connection
		"0A": ClassConfig, // not supported
		"0L": ClassConfig, // grantor
		"0P": ClassConfig, // role
		"25": ClassConfig, // transaction state: transaction control in the statement
		"28": ClassConfig, // authorization
		"2B": ClassConfig, // dependent privileges
		"2D": ClassConfig, // COMMIT inside a procedure
		"3B": ClassConfig, // savepoints
		"3D": ClassConfig, // no such database
		"3F": ClassConfig, // no such schema
		"40": ClassOutage, // deadlock, serialization
		"42": ClassConfig, // names, privileges, syntax
		"53": ClassOutage, // disk, memory, connections
		"57": ClassOutage, // shutdown, start-up, crash of another session
		"58": ClassOutage, // input and output
		"F0": ClassOutage, // configuration file
	}
)

// Classify sorts an error by its SQLSTATE. Errors of the network, of DNS and of the driver are outages.
//
// A 57014 is a statement timeout unless its text says that somebody canceled it; with translated messages the two
// cannot be told apart and both count as timeouts, which costs a smaller batch.
func Classify(err error) Class {
	var config *ConfigError
	if errors.As(err, &config) {
		return ClassConfig
	}
	if untrusted(err) {
		return ClassConfig
	}
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return ClassOutage
	}
	if pg.Code == "57014" && strings.Contains(pg.Message, "user request") {
		return ClassOutage
	}
	if class, ok := classOfCode[pg.Code]; ok {
		return class
	}
	if len(pg.Code) == 5 {
		if class, ok := classOfClass[pg.Code[:2]]; ok {
			return class
		}
	}
	// The server ends the session with it: whatever it is, it is not the row's.
	if strings.EqualFold(pg.Severity, "FATAL") || strings.EqualFold(pg.Severity, "PANIC") {
		return ClassOutage
	}
	return ClassRow
}
