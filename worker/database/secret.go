package database

import (
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
)

// secret is what a mounted Secret holds, by key.
type secret map[string]string

// readSecret reads all keys of one version of the Secret. The kubelet swaps versions by a link named ..data.
func readSecret(dir string) (secret, error) {
	if dir == "" {
		return nil, invalid("the database Secret is missing")
	}
	for {
		version := currentVersion(dir)
		values := secret{}
		entries, err := os.ReadDir(version)
		if err != nil && !os.IsNotExist(err) {
			return nil, invalid("the database Secret cannot be read")
		}
		for _, entry := range entries {
			if strings.HasPrefix(entry.Name(), "..") {
				continue
			}
			if raw, err := os.ReadFile(filepath.Join(version, entry.Name())); err == nil {
				values[entry.Name()] = strings.TrimRight(string(raw), "\r\n")
			}
		}
		if currentVersion(dir) != version {
			continue
		}
		if len(values) == 0 {
			return nil, invalid("the database Secret is missing or empty")
		}
		return values, nil
	}
}

func currentVersion(dir string) string {
	if version, err := filepath.EvalSymlinks(filepath.Join(dir, "..data")); err == nil {
		return version
	}
	return dir
}

// unnamed stands in for a host or user that the Secret does not name, so that the driver does not guess one.
const unnamed = "/unnamed"

// conninfo makes the driver's connection string out of the Secret.
func (s secret) conninfo(uriKey string) (string, error) {
	if uri, ok := s[uriKey]; ok {
		if err := s.checkText(uriKey); err != nil {
			return "", err
		}
		if scheme, isURI := schemeOf(uri); isURI && scheme != "postgres" && scheme != "postgresql" {
			return "", invalid("key %s of the database Secret is no PostgreSQL URI: it must begin with postgres://", uriKey)
		}
		return withDefaults(uri), nil
	}
	settings := maps.Clone(defaults())
	for _, f := range []struct {
		setting string
		keys    []string
	}{
		{"host", []string{"host"}},
		{"port", []string{"port"}},
		{"dbname", []string{"dbname", "database"}},
		{"user", []string{"user", "username"}},
		{"password", []string{"password"}},
		{"sslmode", []string{"sslmode"}},
	} {
		for _, key := range f.keys {
			value, ok := s[key]
			if !ok {
				continue
			}
			if err := s.checkText(key); err != nil {
				return "", err
			}
			settings[f.setting] = value
			break
		}
	}
	switch {
	case settings["host"] == "" || settings["host"] == unnamed:
		return "", invalid("the database Secret has neither the key %s with a URI nor the key host", uriKey)
	case settings["user"] == "":
		return "", invalid("the database Secret has no key user (or username)")
	}
	host, err := bareHosts(settings["host"])
	if err != nil {
		return "", err
	}
	settings["host"] = host
	return render(settings), nil
}

// checkText refuses what an editor or a shell adds to a value unseen. A password may have any character.
func (s secret) checkText(key string) error {
	value := s[key]
	switch {
	case strings.HasPrefix(value, "\ufeff"):
		return invalid("key %s of the database Secret begins with a byte order mark", key)
	case strings.ContainsRune(value, 0):
		return invalid("key %s of the database Secret holds a NUL character", key)
	case key == "password":
		return nil
	case value == "":
		return invalid("key %s of the database Secret is empty", key)
	case value != strings.TrimSpace(value):
		return invalid("key %s of the database Secret begins or ends with a blank", key)
	case strings.ContainsFunc(value, unicode.IsControl):
		return invalid("key %s of the database Secret holds a line break or another control character", key)
	}
	return nil
}

// unusable says that the driver cannot make sense of the Secret, and what is most often the cause.
func (s secret) unusable(uriKey string) error {
	if _, ok := s[uriKey]; ok {
		return invalid("key %s of the database Secret is no valid PostgreSQL URI (postgres://user:password@host:5432/database): special characters in it must be percent-encoded, an IPv6 address needs brackets", uriKey)
	}
	return invalid("the database Secret holds a port or an sslmode that is not valid")
}

// bareHosts takes the brackets off IPv6 addresses, and refuses a host with a port glued to it.
func bareHosts(list string) (string, error) {
	hosts := strings.Split(list, ",")
	for i, host := range hosts {
		if inner, ok := strings.CutPrefix(host, "["); ok {
			if inner, ok = strings.CutSuffix(inner, "]"); ok {
				host = inner
			}
		}
		address, _, _ := strings.Cut(host, "%")
		if strings.ContainsAny(host, ":[]") && net.ParseIP(address) == nil && !strings.HasPrefix(host, "/") {
			return "", invalid("key host of the database Secret is no host name or address: a port goes under key port")
		}
		hosts[i] = host
	}
	return strings.Join(hosts, ","), nil
}

// defaults stand where the driver would look into the home folder of whoever runs the process.
func defaults() map[string]string {
	return map[string]string{
		"passfile": os.DevNull, "sslcert": "", "sslkey": "", "sslrootcert": "", "servicefile": os.DevNull,
	}
}

// render quotes settings as a connection string.
func render(settings map[string]string) string {
	quote := strings.NewReplacer(`\`, `\\`, `'`, `\'`)
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		parts = append(parts, name+"='"+quote.Replace(settings[name])+"'")
	}
	return strings.Join(parts, " ")
}

// withDefaults puts the defaults before what the connection string says, which wins.
func withDefaults(conninfo string) string {
	scheme, isURI := schemeOf(conninfo)
	if !isURI {
		settings := defaults()
		settings["host"], settings["user"] = unnamed, unnamed
		return render(settings) + " " + conninfo
	}
	rest := strings.TrimPrefix(conninfo, scheme+"://")
	query := make(url.Values)
	for name, value := range defaults() {
		query.Set(name, value)
	}
	// As the driver does: user and password end at an @ before the first slash, and may hold a question mark.
	head, user := scheme+"://", ""
	if i := strings.IndexAny(rest, "@/"); i >= 0 && rest[i] == '@' {
		user, _, _ = strings.Cut(rest[:i], ":")
		head, rest = head+rest[:i+1], rest[i+1:]
	}
	if user == "" {
		query.Set("user", unnamed)
	}
	before, after, _ := strings.Cut(rest, "?")
	if before == "" || strings.ContainsAny(before[:1], "/:") {
		query.Set("host", unnamed)
	}
	if after != "" {
		after = "&" + after
	}
	return head + before + "?" + query.Encode() + after
}

// schemeOf tells a URI from libpq's keywords, in whose values there may be a :// too.
func schemeOf(conninfo string) (scheme string, isURI bool) {
	scheme, _, found := strings.Cut(conninfo, "://")
	return scheme, found && !strings.ContainsAny(scheme, "= ")
}
