package preflight

import (
	"fmt"
	"strings"
)

// didYouMean is a hint at the name that was probably meant, or nothing.
func didYouMean(name string, candidates []string) string {
	best, least := "", 1+max(1, len([]rune(name))/3)
	for _, c := range candidates {
		if strings.EqualFold(c, name) {
			return fmt.Sprintf("; did you mean %q? Names are taken literally, upper and lower case differ", c)
		}
		if d := distance(name, c); d < least || d == least && best != "" && c < best {
			best, least = c, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// distance is Levenshtein's: the least number of characters to insert, delete or replace.
func distance(a, b string) int {
	from, to := []rune(a), []rune(b)
	row := make([]int, len(to)+1)
	for j := range row {
		row[j] = j
	}
	for i, x := range from {
		diagonal := row[0]
		row[0] = i + 1
		for j, y := range to {
			cost := 1
			if x == y {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(to)]
}
