package config

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// set stores a TOML value. It answers what is wrong and how to write it, or
// nothing.
func (k *key) set(dst reflect.Value, value any) (what, cure string) {
	ok := false
	switch v := value.(type) {
	case string:
		ok = k.kind != kindBool && k.kind != kindInt && k.kind != kindList && k.setText(dst, v) == ""
	case bool:
		if ok = k.kind == kindBool; ok {
			dst.SetBool(v)
		}
	case int64:
		// A bare 0 needs no unit.
		if ok = k.kind == kindInt || k.kind == kindBytes || k.kind == kindDuration && v == 0; ok {
			ok = !dst.OverflowInt(v)
			dst.SetInt(v)
		}
	case []any:
		ok = k.kind == kindList && setList(dst, v)
	}
	if !ok {
		return describe(value) + " is not " + k.kind.noun(), "write " + k.allowed()
	}
	return "", ""
}

// setText stores a value from its text: a default, or a string of the file.
func (k *key) setText(dst reflect.Value, text string) (what string) {
	ok := true
	switch k.kind {
	case kindText, kindChoice:
		dst.SetString(text)
	case kindBool:
		dst.SetBool(text == "true")
		ok = text == "true" || text == "false"
	case kindInt:
		n, err := strconv.ParseInt(text, 10, 64)
		ok = err == nil
		dst.SetInt(n)
	case kindBytes:
		if text == "" && k.zero != "" {
			return ""
		}
		var n Bytes
		n, ok = ParseBytes(text)
		dst.SetInt(int64(n))
	case kindDuration:
		var d time.Duration
		d, ok = ParseDuration(text)
		dst.SetInt(int64(d))
	case kindList:
		dst.Set(reflect.ValueOf(strings.Split(text, ",")))
	}
	if !ok {
		return strconv.Quote(text) + " is not " + k.kind.noun()
	}
	return ""
}

func setList(dst reflect.Value, values []any) bool {
	list := make([]string, 0, len(values))
	for _, v := range values {
		s, ok := v.(string)
		if !ok {
			return false
		}
		list = append(list, s)
	}
	dst.Set(reflect.ValueOf(list))
	return true
}

func (k kind) noun() string {
	return [...]string{"a string", "a string", "an integer", "a boolean", "an amount of bytes", "a duration", "a list of strings"}[k]
}

// describe writes a value of the file in a message.
func describe(value any) string {
	switch v := value.(type) {
	case string:
		return quote(v)
	case int64, float64, bool:
		return fmt.Sprint(v)
	case time.Time:
		return "a date"
	case map[string]any:
		return "a table"
	case []map[string]any:
		return "a list of tables"
	}
	return "this list"
}

// quote keeps a message on one line of readable length.
func quote(s string) string {
	if len(s) > 60 {
		s = strings.ToValidUTF8(s[:60], "") + "..."
	}
	return strconv.Quote(s)
}

// allowed says in words what may be written for a key.
func (k *key) allowed() string {
	var s string
	switch k.kind {
	case kindChoice:
		return quoteAll(k.choices)
	case kindBool:
		return "true or false"
	case kindList:
		return `a list such as ["` + k.example + `"]`
	case kindText:
		return "a string such as " + strconv.Quote(k.sample())
	case kindInt:
		s = "an integer from " + k.number(k.min) + " to " + k.number(k.max)
	case kindBytes:
		s = `bytes from "` + k.number(k.min) + `" to "` + k.number(k.max) + `"`
	case kindDuration:
		s = `a duration from "` + k.number(k.min) + `" to "` + k.number(k.max) + `"`
	}
	if k.zero != "" {
		s += ", or 0: " + k.zero
	}
	return s
}

// sample is a value that may be written for the key.
func (k *key) sample() string {
	if k.def != "" {
		return k.def
	}
	return k.example
}

// number writes a bound in the key's unit.
func (k *key) number(n int64) string {
	switch k.kind {
	case kindBytes:
		return Bytes(n).String()
	case kindDuration:
		return FormatDuration(time.Duration(n))
	default:
		return strconv.FormatInt(n, 10)
	}
}

func quoteAll(list []string) string {
	quoted := make([]string, len(list))
	for i, s := range list {
		quoted[i] = strconv.Quote(s)
	}
	if len(quoted) < 2 {
		return strings.Join(quoted, "")
	}
	last := len(quoted) - 1
	return strings.Join(quoted[:last], ", ") + " or " + quoted[last]
}

// text writes a value as it would stand in a TOML file.
func (k *key) text(v reflect.Value) string {
	switch k.kind {
	case kindBool:
		return strconv.FormatBool(v.Bool())
	case kindInt:
		return strconv.FormatInt(v.Int(), 10)
	case kindBytes:
		if v.Int() == 0 {
			return "0"
		}
		return strconv.Quote(k.number(v.Int()))
	case kindDuration:
		return strconv.Quote(k.number(v.Int()))
	case kindList:
		list, _ := v.Interface().([]string)
		quoted := make([]string, len(list))
		for i, s := range list {
			quoted[i] = strconv.Quote(s)
		}
		return "[" + strings.Join(quoted, ", ") + "]"
	default:
		return strconv.Quote(v.String())
	}
}
