//! A cluster on this machine: three primaries, each with a replica, with TLS, client certificates
//! and passwords. All tests share it, one at a time; it exits with the test program.
//!
//! `SOFTSWAP_REDIS_SERVER` names another server than `redis-server`, such as `valkey-server`.

pub(crate) use softswap_testkit::waiting::eventually;
use softswap_testkit::waiting::wait_until;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub(crate) const PASSWORD: &str = "correct horse";
pub(crate) const PRIMARIES: usize = 3;
const NODES: usize = 6;
const SLOTS: usize = 16_384;

fn server_program() -> String {
    std::env::var("SOFTSWAP_REDIS_SERVER").unwrap_or_else(|_| "redis-server".into())
}

fn is_any_missing() -> bool {
    [(server_program(), "--version"), ("openssl".into(), "version")].iter().any(
        |(program, argument)| {
            let output = Command::new(program).arg(argument).output();
            let is_missing = !output.is_ok_and(|output| output.status.success());
            if is_missing {
                eprintln!("skipped: {program} is not installed");
            }
            is_missing
        },
    )
}

/// A server process. The shell `guard` kills it when the test program has exited.
struct Server {
    guard: Child,
    pid: i32,
}

pub(crate) struct Node {
    pub(crate) port: u16,
    pub(crate) tls_port: u16,
    directory: PathBuf,
    server: Option<Server>,
    id: String,
}

impl Node {
    fn start(&mut self) {
        // Waits for the server's exit: until then it holds its port and the lock of `nodes.conf`.
        let script = "\"$0\" redis.conf >>log 2>&1 & echo $!; read -r _; kill -9 $!; wait $!";
        let mut guard = Command::new("sh")
            .args(["-c", script, &server_program()])
            .current_dir(&self.directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(guard.stdout.take().unwrap()).read_line(&mut line).unwrap();
        self.server = Some(Server { guard, pid: line.trim().parse().unwrap() });
        wait_until("a server answers", || match self.try_send(&["PING"]) {
            Some(_) => Ok(()),
            None => Err(std::fs::read_to_string(self.directory.join("log")).unwrap_or_default()),
        });
    }

    /// Restarts the server with the content of its file, from a full synchronization or `SAVE`.
    #[allow(dead_code, reason = "other test programs repair the whole cluster")]
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.start();
        eventually("the cluster state is ok", || {
            self.text(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
        });
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            signal(server.pid, rustix::process::Signal::KILL);
            drop(server.guard.stdin.take());
            server.guard.wait().unwrap();
        }
    }

    pub(crate) fn signal(&self, what: rustix::process::Signal) {
        if let Some(server) = &self.server {
            signal(server.pid, what);
        }
    }

    pub(crate) fn try_send(&self, command: &[&str]) -> Option<redis::Value> {
        self.try_send_as(PASSWORD, command)
    }

    pub(crate) fn send_as(&self, password: &str, command: &[&str]) -> redis::Value {
        self.try_send_as(password, command)
            .unwrap_or_else(|| panic!("{command:?} to port {}", self.port))
    }

    fn try_send_as(&self, password: &str, command: &[&str]) -> Option<redis::Value> {
        let address = format!("redis://127.0.0.1:{}", self.port);
        let info = redis::IntoConnectionInfo::into_connection_info(address).unwrap();
        let settings = redis::RedisConnectionInfo::default().set_password(password);
        let client = redis::Client::open(info.set_redis_settings(settings)).ok()?;
        let mut connection = client.get_connection_with_timeout(Duration::from_secs(5)).ok()?;
        connection.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut question = redis::cmd(command[0]);
        command[1..].iter().for_each(|argument| _ = question.arg(*argument));
        question.query(&mut connection).ok()
    }

    pub(crate) fn send(&self, command: &[&str]) -> redis::Value {
        self.try_send(command).unwrap_or_else(|| panic!("{command:?} to port {}", self.port))
    }

    pub(crate) fn text(&self, command: &[&str]) -> String {
        redis::from_redis_value(self.send(command)).unwrap()
    }

    pub(crate) fn number(&self, command: &[&str]) -> i64 {
        redis::from_redis_value(self.send(command)).unwrap()
    }

    pub(crate) fn keys(&self, pattern: &str) -> Vec<String> {
        redis::from_redis_value(self.send(&["KEYS", pattern])).unwrap()
    }

    pub(crate) fn extent_keys(&self) -> Vec<String> {
        let is_extent = |key: &String| !key.ends_with("lease") && !key.ends_with("placement");
        self.keys("softswap:*").into_iter().filter(is_extent).collect()
    }

    pub(crate) fn set(&self, name: &str, value: &str) {
        self.send(&["CONFIG", "SET", name, value]);
    }

    /// Redirects clients without TLS to another port; servers still use the TLS port.
    pub(crate) fn announce(&self, port: Option<u16>) {
        let tls_port = port.map_or(0, |_| self.tls_port).to_string();
        self.set("cluster-announce-tls-port", &tls_port);
        self.set("cluster-announce-port", &port.unwrap_or(0).to_string());
    }

    pub(crate) fn used_slots(&self) -> Vec<u16> {
        let slot = |key: &String| self.number(&["CLUSTER", "KEYSLOT", key]) as u16;
        let mut slots: Vec<u16> = self.keys("*").iter().map(slot).collect();
        slots.sort_unstable();
        slots.dedup();
        slots
    }

    pub(crate) fn is_primary(&self) -> bool {
        let role = |value| match value {
            redis::Value::Array(parts) => redis::from_redis_value_ref::<String>(&parts[0]).ok(),
            _ => None,
        };
        self.try_send(&["ROLE"]).and_then(role).is_some_and(|role| role == "master")
    }
}

/// A line of `CLUSTER NODES` begins with the server's ID. Its slots follow eight fields, as
/// `first-last` or a single one; those in brackets are being moved.
fn owners_in(nodes: &str) -> Vec<Option<String>> {
    let mut owners = vec![None; SLOTS];
    for line in nodes.lines() {
        let id = line.split(' ').next().map(str::to_string);
        for field in line.split(' ').skip(8) {
            let (first, last) = field.split_once('-').unwrap_or((field, field));
            if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) {
                owners[first..=last].fill(id.clone());
            }
        }
    }
    owners
}

fn signal(pid: i32, what: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, what).unwrap();
}

pub(crate) struct TestCluster {
    pub(crate) nodes: Vec<Node>,
    directory: PathBuf,
    /// Removes the directory when this program has exited, because statics are not dropped.
    _directory_remover: Child,
}

/// Returns ports outside the range of outgoing connections: a restarted server needs its port.
fn free_ports(count: usize) -> Vec<u16> {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    let own = std::process::id() * 20;
    let candidates = std::iter::repeat_with(|| {
        10_000 + ((own + TRIED.fetch_add(1, Ordering::Relaxed)) % 20_000) as u16
    });
    let listen = |port| TcpListener::bind(("127.0.0.1", port)).ok();
    let held: Vec<TcpListener> = candidates.take(20_000).filter_map(listen).take(count).collect();
    held.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}

fn make_certificates(directory: &Path) {
    let openssl = |line: &str| {
        let output =
            Command::new("openssl").args(line.split(' ')).current_dir(directory).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let key = "req -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1";
    openssl(&format!("{key} -x509 -days 2 -subj /CN=test-ca -keyout ca.key -out ca.pem"));
    openssl(&format!("{key} -subj /CN=test -keyout node.key -out node.csr"));
    std::fs::write(directory.join("names"), "subjectAltName=IP:127.0.0.1,DNS:localhost\n").unwrap();
    openssl(
        "x509 -req -days 2 -in node.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile names \
         -out node.pem",
    );
}

impl TestCluster {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap().keep();
        let directory_remover = Command::new("sh")
            .args(["-c", "read -r _; until rm -rf \"$0\"; do sleep 0.1; done"])
            .arg(&directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        make_certificates(&directory);
        let nodes = free_ports(3 * NODES)
            .chunks(3)
            .map(|ports| make_node(&directory, ports[0], ports[1], ports[2]))
            .collect();
        let mut test_cluster = Self { nodes, directory, _directory_remover: directory_remover };
        test_cluster.nodes.iter_mut().for_each(Node::start);
        test_cluster.join();
        test_cluster
    }

    fn join(&mut self) {
        for number in 0..NODES {
            self.nodes[number].id = self.nodes[number].text(&["CLUSTER", "MYID"]);
            let epoch = (number + 1).to_string();
            self.nodes[number].send(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]);
        }
        for (number, range) in [(0, 5460), (5461, 10922), (10923, 16383)].iter().enumerate() {
            let (first, last) = (range.0.to_string(), range.1.to_string());
            self.nodes[number].send(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
        }
        eventually("every server knows all servers", || {
            let knows_all = |node: &Node| {
                let answer = node.text(&["CLUSTER", "NODES"]);
                answer.lines().filter(|line| !line.contains("handshake")).count() == NODES
            };
            let unknown_to: Vec<&Node> =
                self.nodes.iter().filter(|node| !knows_all(node)).collect();
            // Retries, because a handshake times out after a second.
            for node in unknown_to.iter().filter(|node| node.port != self.nodes[0].port) {
                let (port, bus) = (self.nodes[0].tls_port.to_string(), bus_port(&self.nodes[0]));
                node.send(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
            }
            std::thread::sleep(Duration::from_millis(500));
            unknown_to.is_empty()
        });
        for number in PRIMARIES..NODES {
            let id = self.nodes[number - PRIMARIES].id.clone();
            eventually("the server becomes a replica", || {
                self.nodes[number].try_send(&["CLUSTER", "REPLICATE", &id]).is_some()
            });
        }
        self.restore();
    }

    fn restore(&mut self) {
        self.run_all();
        self.nodes.iter().for_each(|node| node.announce(None));
        self.repair();
        self.forget();
    }

    /// Empties all servers, and removes their files: a restart would load them, however old.
    pub(crate) fn forget(&self) {
        for node in &self.nodes {
            let _ = std::fs::remove_file(node.directory.join("dump.rdb"));
        }
        self.primary_nodes().for_each(|node| _ = node.send(&["FLUSHALL"]));
    }

    fn run_all(&mut self) {
        for node in &mut self.nodes {
            match &node.server {
                Some(_) => node.signal(rustix::process::Signal::CONT),
                None => node.start(),
            }
        }
    }

    pub(crate) fn repair(&mut self) {
        self.run_all();
        eventually("the cluster is whole", || {
            self.assign_lost_slots();
            self.is_whole()
        });
        for node in &self.nodes {
            node.set("min-replicas-to-write", "0");
            node.set("maxmemory", "268435456");
            node.set("maxmemory-policy", "noeviction");
        }
    }

    /// Assigns slots that a primary does not have, although no other server is their owner for the
    /// rest. A replica that becomes a primary right after its primary got a slot may lack it.
    fn assign_lost_slots(&self) {
        let view = |node: &Node| {
            let answer = node.try_send(&["CLUSTER", "NODES"]);
            answer.map_or_else(Vec::new, |it| {
                owners_in(&redis::from_redis_value::<String>(it).unwrap())
            })
        };
        let views: Vec<Vec<Option<String>>> = self.nodes.iter().map(view).collect();
        for number in self.primaries() {
            let id = Some(&self.nodes[number].id);
            let is_lost = |slot: &usize| {
                let owners = views.iter().filter_map(|view| view.get(*slot));
                views[number].get(*slot) == Some(&None)
                    && owners.flatten().all(|owner| Some(owner) == id)
            };
            let lost = (0..SLOTS).filter(is_lost).map(|slot| slot.to_string());
            let lost: Vec<String> = lost.collect();
            if !lost.is_empty() {
                let lost: Vec<&str> = lost.iter().map(String::as_str).collect();
                self.nodes[number].try_send(&[&["CLUSTER", "ADDSLOTS"], &lost[..]].concat());
                return;
            }
        }
    }

    pub(crate) fn is_whole(&self) -> bool {
        let sees_no_failure = |node: &Node| {
            let Some(answer) = node.try_send(&["CLUSTER", "NODES"]) else { return false };
            let answer: String = redis::from_redis_value(answer).unwrap();
            let is_connected = |line: &str| !line.contains("fail") && line.contains(" connected");
            answer.lines().count() == NODES && answer.lines().all(is_connected)
        };
        let is_followed = |node: &Node| {
            let answer = node.text(&["INFO", "replication"]);
            answer.contains("master_link_status:up") || answer.contains("connected_slaves:1")
        };
        self.nodes.iter().all(|node| sees_no_failure(node) && is_followed(node))
            && self.nodes.iter().all(|node| {
                let info = node.text(&["CLUSTER", "INFO"]);
                info.contains("state:ok") && info.contains(&format!("slots_ok:{SLOTS}"))
            })
    }

    pub(crate) fn primaries(&self) -> Vec<usize> {
        (0..NODES).filter(|number| self.nodes[*number].is_primary()).collect()
    }

    pub(crate) fn primary_nodes(&self) -> impl Iterator<Item = &Node> {
        self.primaries().into_iter().map(|number| &self.nodes[number])
    }

    pub(crate) fn key_count(&self) -> i64 {
        self.primary_nodes().map(|node| node.number(&["DBSIZE"])).sum()
    }

    pub(crate) fn signal_all(&self, what: rustix::process::Signal) {
        self.nodes.iter().for_each(|node| node.signal(what));
    }

    pub(crate) fn set_maxmemory(&self, bytes: &str) {
        self.primary_nodes().for_each(|node| node.set("maxmemory", bytes));
    }

    pub(crate) fn change_password(&self, from: &str, to: &str) {
        for node in &self.nodes {
            node.send_as(from, &["CONFIG", "SET", "masterauth", to]);
            node.send_as(from, &["CONFIG", "SET", "requirepass", to]);
            node.send_as(to, &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        }
    }

    pub(crate) fn replica_of(&self, primary: usize) -> usize {
        let id = &self.nodes[primary].id;
        let answer = self.nodes[primary].text(&["CLUSTER", "NODES"]);
        let line = answer.lines().find(|line| line.contains(&format!("slave {id}"))).unwrap();
        self.nodes.iter().position(|node| line.starts_with(&node.id)).unwrap()
    }

    /// Moves slots with their content, as `redis-cli --cluster reshard` does.
    pub(crate) fn migrate(&self, from: &Node, to: &Node, slots: &[u16]) {
        for slot in slots.iter().map(u16::to_string) {
            to.send(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from.id]);
            from.send(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to.id]);
            let port = to.tls_port.to_string();
            loop {
                let keys = from.send(&["CLUSTER", "GETKEYSINSLOT", &slot, "20"]);
                let keys: Vec<String> = redis::from_redis_value(keys).unwrap();
                if keys.is_empty() {
                    break;
                }
                let mut command = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000"];
                command.extend(["AUTH", PASSWORD, "KEYS"]);
                command.extend(keys.iter().map(String::as_str));
                from.send(&command);
            }
            for node in [to, from] {
                node.send(&["CLUSTER", "SETSLOT", &slot, "NODE", &to.id]);
            }
        }
    }

    pub(crate) fn colocated_extents(&self) -> usize {
        let count = |primary: usize| {
            let name = |key: &String| key.split_once('}').unwrap().1.to_string();
            let mut names: Vec<String> =
                self.nodes[primary].extent_keys().iter().map(name).collect();
            let all = names.len();
            names.sort();
            names.dedup();
            all - names.len()
        };
        self.primaries().into_iter().map(count).sum()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub(crate) fn secure_url(&self, options: &str) -> String {
        let [ca, cert, key] =
            ["ca.pem", "node.pem", "node.key"].map(|name| self.file(name).display().to_string());
        let url = self.url_to(self.nodes.iter().map(|node| node.tls_port), options);
        url.replacen("redis://", "rediss://", 1) + &format!("&ca={ca}&cert={cert}&key={key}")
    }

    pub(crate) fn plain_url(&self, options: &str) -> String {
        self.url_to(self.nodes.iter().map(|node| node.port), options)
    }

    pub(crate) fn url_to(&self, ports: impl Iterator<Item = u16>, options: &str) -> String {
        url_to(&self.directory, ports, options)
    }
}

fn url_to(directory: &Path, ports: impl Iterator<Item = u16>, options: &str) -> String {
    let password = directory.join("password");
    std::fs::write(&password, format!("{PASSWORD}\n")).unwrap();
    let seeds: Vec<String> = ports.map(|port| format!("127.0.0.1:{port}")).collect();
    format!("redis://{}?password-file={}{options}", seeds.join(","), password.display())
}

fn bus_port(node: &Node) -> String {
    let settings = std::fs::read_to_string(node.directory.join("redis.conf")).unwrap();
    let line = settings.lines().find_map(|line| line.strip_prefix("cluster-port "));
    line.unwrap().to_string()
}

fn make_node(directory: &Path, port: u16, tls_port: u16, bus_port: u16) -> Node {
    let own = directory.join(port.to_string());
    std::fs::create_dir(&own).unwrap();
    let certificates = directory.display();
    let settings = format!(
        "bind 127.0.0.1\nport {port}\ntls-port {tls_port}\ncluster-port {bus_port}\n\
         tls-cert-file {certificates}/node.pem\ntls-key-file {certificates}/node.key\n\
         tls-ca-cert-file {certificates}/ca.pem\ntls-auth-clients yes\n\
         tls-cluster yes\ntls-replication yes\n\
         cluster-enabled yes\ncluster-node-timeout 1000\ncluster-replica-validity-factor 0\n\
         cluster-require-full-coverage no\ncluster-allow-replica-migration no\n\
         repl-diskless-sync-delay 0\nsave \"\"\nappendonly no\n\
         requirepass \"{PASSWORD}\"\nmasterauth \"{PASSWORD}\"\n\
         maxmemory 256mb\nmaxmemory-policy noeviction\n"
    );
    let mut file = std::fs::File::create(own.join("redis.conf")).unwrap();
    file.write_all(settings.as_bytes()).unwrap();
    Node { port, tls_port, directory: own, server: None, id: String::new() }
}

pub(crate) struct SingleServer {
    pub(crate) node: Node,
    directory: tempfile::TempDir,
}

impl SingleServer {
    pub(crate) fn url(&self, options: &str) -> String {
        url_to(self.directory.path(), [self.node.port].into_iter(), options)
    }
}

pub(crate) fn single_server() -> Option<SingleServer> {
    if is_any_missing() {
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    let port = free_ports(1)[0];
    let settings = format!(
        "bind 127.0.0.1\nport {port}\nsave \"\"\nappendonly no\nrequirepass \"{PASSWORD}\"\n\
         maxmemory 512mb\nmaxmemory-policy noeviction\n"
    );
    std::fs::write(directory.path().join("redis.conf"), settings).unwrap();
    let own = directory.path().to_path_buf();
    let mut node = Node { port, tls_port: 0, directory: own, server: None, id: String::new() };
    node.start();
    Some(SingleServer { node, directory })
}

static TEST_CLUSTER: LazyLock<Mutex<TestCluster>> =
    LazyLock::new(|| Mutex::new(TestCluster::new()));

pub(crate) fn test_cluster() -> Option<MutexGuard<'static, TestCluster>> {
    if is_any_missing() {
        return None;
    }
    let mut test_cluster = TEST_CLUSTER.lock().unwrap_or_else(PoisonError::into_inner);
    test_cluster.restore();
    Some(test_cluster)
}
