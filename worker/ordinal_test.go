package worker

import "testing"

func TestC11OrdinalComesFromThePodName(t *testing.T) {
	tests := map[string]struct {
		job, pod string
		want     int32
		ok       bool
	}{
		"plain":                       {"job", "job-0", 0, true},
		"two digits":                  {"job", "job-10", 10, true},
		"job that looks like a pod":   {"job-1", "job-1-10", 10, true},
		"job that ends in a number":   {"a-0-1", "a-0-1-2", 2, true},
		"pod of another job":          {"job", "job-1-10", 0, false},
		"leading zero":                {"job", "job-01", 0, false},
		"negative":                    {"job", "job--1", 0, false},
		"no number":                   {"job", "job-x", 0, false},
		"nothing but the job":         {"job", "job", 0, false},
		"the node's name, as host":    {"job", "node-7", 0, false},
		"a number that is out of all": {"job", "job-99999999999", 0, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := podOrdinal(tt.job, tt.pod)
			if (err == nil) != tt.ok || got != tt.want {
				t.Errorf("podOrdinal(%q, %q) = %d, %v", tt.job, tt.pod, got, err)
			}
		})
	}
}
