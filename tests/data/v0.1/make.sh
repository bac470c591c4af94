# Makes a node and what it stores. In an empty directory, with the garlicfarm of commit f41f532 in PATH.
set -eu
umask 077
garlicfarm farm create --member 1=ssl://127.0.0.1:28150 --out made
cd made/node-1
cat >> garlicfarm.toml <<'TOML'

[farm.raft]
election_timeout_min_s = 0.5
election_timeout_max_s = 1.0
heartbeat_s = 0.1

[farm.retention]
snapshot_every_entries = 10
keep_entries = 4
TOML
garlicfarm farm add vault --application log
for role in reader poster admin; do
  echo "the word of the $role" > $role.password
  garlicfarm user add the-$role --role $role --password-file $role.password
done
export GARLICFARM_ADMIN__URL=https://127.0.0.1:0 GARLICFARM_LISTENER__0__URL=ssl://127.0.0.1:0
garlicfarm node start 2> ../log & node=$!; trap "kill $node" EXIT
garlicfarm wait --for leader --farm farm --timeout 30
garlicfarm wait --for leader --farm vault --timeout 30
garlicfarm farm set --farm farm interval=1s R=4
url=$(cat data/admin.url)
pin=$(sed -n 's/^endpoint = .*pin=\(sha256-[A-Za-z0-9_-]*\)"/\1/p' garlicfarm.toml | head -1)
poster="--node $url --pin $pin --user the-poster --password-file poster.password"
for n in $(seq 1 12); do
  now=$(date +%s%3N)
  printf '{"cluster":"farm","date":%d,"id":0,"sequence":%d,"config":{"by":"the-poster","note":%d}}' $now $now $n > note
  garlicfarm log post note --farm farm $poster
done
rm note
echo "entry of the log" | garlicfarm log post --farm vault $poster
sleep 5
garlicfarm member token --farm farm --id 2 --expires 999999d --out join.token
trap - EXIT; kill $node; wait $node
rm -f data/admin.url
