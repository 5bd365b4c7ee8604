package controllers

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	"shardedjob.dev/api/v1alpha1"
)

// How long a change of status may wait for more of its kind.
const (
	figuresInterval = 10 * time.Second
	detailsInterval = time.Second
)

// writeInterval is how long after the last write the new status may be written: at once for what people and programs
// wait for, a second for counts and messages, ten for mere progress, warnings and who
// has adopted what. It is negative if there is nothing to write.
func writeInterval(last, next v1alpha1.ShardedJobStatus) time.Duration {
	if equality.Semantic.DeepEqual(last, next) {
		return -1
	}
	withoutFigures := func(s v1alpha1.ShardedJobStatus) v1alpha1.ShardedJobStatus {
		s = *s.DeepCopy()
		s.Progress, s.Slots, s.Warnings = nil, nil, nil
		for i := range s.Conditions {
			s.Conditions[i].Message = steady(s.Conditions[i].Message)
		}
		return s
	}
	withoutDetails := func(s v1alpha1.ShardedJobStatus) v1alpha1.ShardedJobStatus {
		s = withoutFigures(s)
		s.Replicas, s.ReadyReplicas, s.SlotCounts, s.Coordinator = 0, 0, nil, ""
		for i := range s.Conditions {
			s.Conditions[i].Message = ""
		}
		if s.Repartition != nil {
			s.Repartition.Message = ""
		}
		return s
	}
	switch {
	case !equality.Semantic.DeepEqual(withoutDetails(last), withoutDetails(next)):
		return 0
	case !equality.Semantic.DeepEqual(withoutFigures(last), withoutFigures(next)):
		return detailsInterval
	default:
		return figuresInterval
	}
}

// steady is the message up to what may change at any moment: adopters take turns, and warnings tell how long something
// lasts.
func steady(message string) string {
	message, _, _ = strings.Cut(message, adoptedMark)
	message, _, _ = strings.Cut(message, warningMark)
	return message
}
