#!/usr/bin/env bash
# Completions in the shells themselves: bash, zsh and fish complete verbs, and the names that a running hub knows.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
. "$here/lib.sh"
work=$(mktemp -d)
trap cleanup EXIT

admin=127.0.0.1:$((30000 + RANDOM % 10000)) mqtt=127.0.0.1:$((20000 + RANDOM % 10000))
cat >"$work/hub.toml" <<EOF
[hub]
id = "edge"
data_dir = "$work/data"
[admin]
socket = "$work/hub.sock"
address = "$admin"
[auth]
users_file = "$work/users"
[[listener]]
address = "$mqtt"
[[stream]]
name = "telemetry"
filters = ["telemetry/#"]
[[uplink]]
name = "central"
url = "nats://127.0.0.1:1"
EOF
PATH=$PWD/dist/amd64:$PATH
export PATH HUBCTL_SOCKET=$work/hub.sock
echo secret | hubctl user add technician --file "$work/users" 2>/dev/null
hubd -config "$work/hub.toml" >"$work/hubd.log" 2>&1 &
pids+=("$!")
within 60 curl -fs -o /dev/null "http://$admin/readyz" || die "the hub is not ready: $(tail -5 "$work/hubd.log")"
hubctl pub state/lamp on --qos 1 --retain >/dev/null
hubctl ban add address 192.0.2.7 >/dev/null
for shell in bash zsh fish; do
  gzip -dc <"dist/share/completion/hubctl.$shell" 2>/dev/null >"$work/hubctl.$shell" || cp "dist/share/completion/hubctl.$shell" "$work/hubctl.$shell"
done

# Each function prints what its shell offers for a command line that ends with a word to complete.
in_bash() {
  bash --norc -c '
    source /usr/share/bash-completion/bash_completion
    source "$1"
    shift
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_TYPE=9 COMP_KEY=9
    COMP_POINT=${#COMP_LINE}
    compopt() { :; }
    "$(complete -p hubctl | sed -n "s/.* -F \([^ ]*\).*/\1/p")" hubctl "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
    printf "%s\n" "${COMPREPLY[@]}"' bash "$work/hubctl.bash" "$@" 2>/dev/null
}
in_fish() {
  fish --no-config -c 'source $argv[1]; complete -C "$argv[2..-1]"' "$work/hubctl.fish" "$@" 2>/dev/null
}
# A zsh of its own on a pseudo terminal; tab is pressed behind the line. A tab that comes together with other keys is
# taken as pasted, and completes nothing.
cat >"$work/press.zsh" <<'EOF'
zmodload zsh/zpty
zpty shell "TERM=dumb zsh -f -i"
zpty -w shell "autoload -Uz compinit; compinit -u -D; source $1; compdef _hubctl hubctl; LISTMAX=10000; print rea\"\"dy"
zpty -r -m shell out "*ready*"
shift
sleep 0.3
zpty -n -w shell "$*"
sleep 0.5
zpty -n -w shell $'\t'
for i in {1..50}; do
  sleep 0.1
  while zpty -r -t shell more; do print -rn -- "$more"; done
done
zpty -d shell
EOF
in_zsh() {
  # What is on the line is drawn with control characters in between.
  zsh -f "$work/press.zsh" "$work/hubctl.zsh" "$@" 2>/dev/null | tr -d '\000-\010\016-\037'
}

offers() { # SHELL WANT WORD...
  local shell=$1 want=$2 got
  shift 2
  got=$("in_$shell" "$@" || true)
  grep -qF -- "$want" <<<"$got" || die "$shell: \`$*\` does not offer $want, but: $got"
}
for shell in bash zsh fish; do
  offers "$shell" status hubctl sta
  offers "$shell" telemetry hubctl stream show ""
  offers "$shell" central hubctl uplink pause ""
  offers "$shell" state/lamp hubctl retained get sta
  offers "$shell" technician hubctl user passwd ""
  offers "$shell" 192.0.2.7 hubctl ban rm address ""
done
say "completion: bash, zsh and fish offer verbs and live names"
