// Package v1alpha1 is what users write and what the two halves of ShardedJob tell each other.
//
// The ShardedJob types are the user's side: a table, a number of replicas n and what to do with each row. Plan and
// Report are the inner contract: the operator tells workers through a Plan, the workers' coordinator answers with a
// Report. Both travel in ConfigMaps, because a worker may read and write nothing else. The operator and the worker
// never import each other; they meet here.
//
// +kubebuilder:object:generate=true
// +kubebuilder:ac:generate=true
// +groupName=shardedjob.dev
package v1alpha1
