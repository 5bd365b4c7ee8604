package database

import "fmt"

// condition is the name that PostgreSQL's manual (appendix A) gives to a code.
func condition(code string) string {
	if name, ok := conditions[code]; ok {
		return name
	}
	if len(code) == 5 {
		if name, ok := conditionClasses[code[:2]]; ok {
			return name
		}
	}
	return fmt.Sprintf("error %s", code)
}

var conditions = map[string]string{
	"21000": "cardinality_violation",
	"22000": "data_exception",
	"22001": "string_data_right_truncation",
	"22003": "numeric_value_out_of_range",
	"22004": "null_value_not_allowed",
	"22007": "invalid_datetime_format",
	"22008": "datetime_field_overflow",
	"22009": "invalid_time_zone_displacement_value",
	"22011": "substring_error",
	"22012": "division_by_zero",
	"22021": "character_not_in_repertoire",
	"22023": "invalid_parameter_value",
	"22025": "invalid_escape_sequence",
	"2201B": "invalid_regular_expression",
	"2201E": "invalid_argument_for_logarithm",
	"2201F": "invalid_argument_for_power_function",
	"2202E": "array_subscript_error",
	"22030": "duplicate_json_object_key_value",
	"22032": "invalid_json_text",
	"22P01": "floating_point_exception",
	"22P02": "invalid_text_representation",
	"22P03": "invalid_binary_representation",
	"22P05": "untranslatable_character",
	"23000": "integrity_constraint_violation",
	"23001": "restrict_violation",
	"23502": "not_null_violation",
	"23503": "foreign_key_violation",
	"23505": "unique_violation",
	"23514": "check_violation",
	"23P01": "exclusion_violation",
	"25006": "read_only_sql_transaction",
	"27000": "triggered_data_change_violation",
	"40001": "serialization_failure",
	"40P01": "deadlock_detected",
	"42501": "insufficient_privilege",
	"42601": "syntax_error",
	"42703": "undefined_column",
	"42804": "datatype_mismatch",
	"42883": "undefined_function",
	"42P01": "undefined_table",
	"44000": "with_check_option_violation",
	"53100": "disk_full",
	"53200": "out_of_memory",
	"53300": "too_many_connections",
	"54000": "program_limit_exceeded",
	"54001": "statement_too_complex",
	"55000": "object_not_in_prerequisite_state",
	"55006": "object_in_use",
	"55P03": "lock_not_available",
	"57014": "query_canceled",
	"57P01": "admin_shutdown",
	"57P02": "crash_shutdown",
	"57P03": "cannot_connect_now",
	"57P05": "idle_session_timeout",
	"58030": "io_error",
	"58P01": "undefined_file",
	"P0001": "raise_exception",
	"P0002": "no_data_found",
	"P0003": "too_many_rows",
	"P0004": "assert_failure",
	"XX000": "internal_error",
	"XX001": "data_corrupted",
	"XX002": "index_corrupted",
}

var conditionClasses = map[string]string{
	"08": "connection_exception",
	"0A": "feature_not_supported",
	"22": "data_exception",
	"23": "integrity_constraint_violation",
	"25": "invalid_transaction_state",
	"28": "invalid_authorization_specification",
	"2D": "invalid_transaction_termination",
	"2F": "sql_routine_exception",
	"38": "external_routine_exception",
	"39": "external_routine_invocation_exception",
	"42": "syntax_error_or_access_rule_violation",
	"53": "insufficient_resources",
	"54": "program_limit_exceeded",
	"57": "operator_intervention",
	"58": "system_error",
	"HV": "fdw_error",
	"P0": "plpgsql_error",
	"XX": "internal_error",
}
