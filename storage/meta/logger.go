package meta

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
)

// badgerLogger passes Badger's messages on. What Badger calls information is
// of interest only to who looks into Badger.
type badgerLogger struct{ log *slog.Logger }

func (l badgerLogger) say(level slog.Level, format string, args []any) {
	if !l.log.Enabled(context.Background(), level) {
		return
	}
	l.log.Log(context.Background(), level, "metadata index", "badger", strings.TrimSpace(fmt.Sprintf(format, args...)))
}

func (l badgerLogger) Errorf(format string, args ...any)   { l.say(slog.LevelError, format, args) }
func (l badgerLogger) Warningf(format string, args ...any) { l.say(slog.LevelWarn, format, args) }
func (l badgerLogger) Infof(format string, args ...any)    { l.say(slog.LevelDebug, format, args) }
func (l badgerLogger) Debugf(format string, args ...any)   { l.say(slog.LevelDebug-4, format, args) }
