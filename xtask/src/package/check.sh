# In a mount namespace of its own: $1 the package, $2 a newer one, $3 a work directory, $4 where service reports go.
package=$1 upgrade=$2 work=$3 notify=$4
mount -t tmpfs none "$work"
mkdir "$work/upper" "$work/work" "$work/view"
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" "$work/view"
view=$work/view
for dir in proc sys dev; do mount --rbind "/$dir" "$view/$dir"; done
cp "$package" "$work/view/root/first.deb"
cp "$upgrade" "$work/view/root/second.deb"
here() { DEBIAN_FRONTEND=noninteractive chroot "$view" "$@"; }
fail() { echo "FAILED: $*"; exit 1; }
state() { here dpkg-query -W -f '${db:Status-Status} ${Version}' tracer 2>/dev/null || echo absent; }

here getent passwd tracer >/dev/null && fail "this system has a user tracer already"
test "$(state)" = absent || fail "this system has the package already: $(state)"
cp "$view/etc/passwd" "$work/passwd"; cp "$view/etc/group" "$work/group"

here dpkg --install /root/first.deb >"$work/log" 2>&1 || { cat "$work/log"; fail "install"; }
echo "installed: $(state); user $(here id tracer); /var/lib/tracer $(here stat -c '%U %a' /var/lib/tracer)"
here dpkg-query -L tracer | sed -n 's,^/\(usr\|etc\)/.*[^/]$,  &,p' | while read -r path; do
    test -d "$view$path" || echo "  $path $(stat -c %s "$view$path")"
done
test -e "$view/etc/systemd/system/multi-user.target.wants/tracer.service" || test -L \
    "$view/etc/systemd/system/multi-user.target.wants/tracer.service" || fail "the unit is not enabled"
here systemd-analyze verify --man=no /usr/lib/systemd/system/tracer.service >"$work/log" 2>&1 || { cat "$work/log"; fail "unit"; }
grep -i tracer "$work/log" && fail "systemd-analyze verify has something to say about the unit"
echo "systemd-analyze verify: nothing to say"
here tracer check-config /etc/tracer/tracer.toml

unit=$view/usr/lib/systemd/system/tracer.service
names=$(sed -n 's/^AmbientCapabilities=//p' "$unit" | tr 'A-Z' 'a-z' | sed 's/cap_/+/g; s/ /,/g')
start=$(sed -n 's/^ExecStart=//p' "$unit")
# shellcheck disable=SC2086 # ExecStart is a list of words
# Without the unit's LimitNICE, which containers may not raise: the agent says so and runs at a lower priority.
here setpriv --reuid tracer --regid tracer --clear-groups --inh-caps="-all,$names" --ambient-caps="-all,$names" \
    --bounding-set="-all,$names" --no-new-privs env -i PATH=/usr/bin NOTIFY_SOCKET="$notify" WATCHDOG_USEC=60000000 \
    sh -c "cd /var/lib/tracer && umask 077 && exec $start --listen 127.0.0.1:0 --duration 4s" >"$work/log" 2>&1 ||
    { cat "$work/log"; fail "the unit's command"; }
echo "ran as the unit says, with $names:"
head -n 3 "$work/log" | sed 's/^/  /'
echo "state: $(ls "$view/var/lib/tracer" | tr '\n' ' ')"

echo '# edited by an administrator' >>"$view/etc/tracer/tracer.toml"
here dpkg --install /root/second.deb >"$work/log" 2>&1 || { cat "$work/log"; fail "upgrade"; }
grep -q 'edited by an administrator' "$view/etc/tracer/tracer.toml" || fail "the upgrade lost the configuration"
test -e "$view/var/lib/tracer/token" || fail "the upgrade lost the state"
echo "upgraded: $(state); the edited configuration and the state stayed"

here dpkg --remove tracer >"$work/log" 2>&1 || { cat "$work/log"; fail "remove"; }
test ! -e "$view/usr/bin/tracer" || fail "the binary is still there"
test -e "$view/etc/tracer/tracer.toml" && test -e "$view/var/lib/tracer/token" || fail "remove took configuration or state"
echo "removed: $(state); configuration and state stayed"

here dpkg --purge tracer >"$work/log" 2>&1 || { cat "$work/log"; fail "purge"; }
grep -v 'Purging\|Reading\|files and directories' "$work/log" | grep . && fail "purge says more than it should"
echo "purged: $(state)"
cmp "$work/passwd" "$view/etc/passwd" && cmp "$work/group" "$view/etc/group" || fail "accounts differ"
rm "$view/root/first.deb" "$view/root/second.deb"
# What was written: the package manager's and account tools' own records may differ, anything else is a leftover.
records='^\./var/(lib/dpkg|log|cache)/|^\./etc/(passwd|group|shadow|gshadow|subuid|subgid)-?$|^\./etc/\.pwd\.lock$'
# systemd-analyze's own.
records="$records|^\./run/systemd/systemd-units-load$"
left=$(cd "$work/upper" && find . ! -type d | grep -v -E "$records" || true)
left="$left$(cd "$work/upper" && find . -name '*tracer*' ! -path './var/lib/dpkg/*')"
test -z "$left" || { echo "$left"; fail "these files are left"; }
echo "left after purge: nothing"
