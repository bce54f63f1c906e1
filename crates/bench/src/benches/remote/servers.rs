//! A cluster on this machine: primaries without replicas, killed with the benchmark.

use softswap_cli::refusal::{OrRefuse, Refusal, plain};
use std::fs::File;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SLOTS: usize = 16_384;
const TIMEOUT: Duration = Duration::from_secs(30);

struct Server {
    process: Child,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(super) struct Servers {
    servers: Vec<Server>,
    _directory: tempfile::TempDir,
}

impl Servers {
    /// Starts primaries that share all slots, each limited to `limit_bytes` of memory.
    pub(super) fn start(primaries: u16, limit_bytes: u64) -> Result<Servers, Refusal> {
        let directory = tempfile::tempdir().or_own("cannot create a temporary directory")?;
        let ports = free_ports(2 * usize::from(primaries)).or_own("no free ports on 127.0.0.1")?;
        let servers = ports.chunks(2).map(|ports| {
            let own = directory.path().join(ports[0].to_string());
            std::fs::create_dir(&own).or_own("a server's directory")?;
            server(&own, ports[0], ports[1], limit_bytes)
        });
        let servers =
            Servers { servers: servers.collect::<Result<_, _>>()?, _directory: directory };
        servers.join(&ports)?;
        Ok(servers)
    }

    fn join(&self, ports: &[u16]) -> Result<(), Refusal> {
        let count = self.servers.len();
        for (at, server) in self.servers.iter().enumerate() {
            eventually("a redis-server answers", || server.request(&["PING"]).is_ok())?;
            let (first, last) = (at * SLOTS / count, (at + 1) * SLOTS / count - 1);
            server.request(&["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()])?;
            server.request(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()])?;
            if at > 0 {
                let (port, bus_port) = (ports[0].to_string(), ports[1].to_string());
                server.request(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus_port])?;
            }
        }
        let knows_all = |server: &Server| {
            let reply = server.text(&["CLUSTER", "INFO"]).unwrap_or_default();
            let all = format!("cluster_known_nodes:{count}\r");
            reply.contains("cluster_state:ok") && reply.contains(&all)
        };
        eventually("the servers know each other", || self.servers.iter().all(knows_all))
    }

    pub(super) fn seeds(&self) -> String {
        let seeds: Vec<_> =
            self.servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
        seeds.join(",")
    }

    /// Returns the memory allocated by all servers (`used_memory`).
    pub(super) fn used_bytes(&self) -> Result<u64, Refusal> {
        let used = |server: &Server| {
            let reply = server.text(&["INFO", "memory"])?;
            let line = reply.lines().find_map(|line| line.strip_prefix("used_memory:"));
            line.and_then(|text| text.trim().parse::<u64>().ok())
                .ok_or_else(|| Refusal::own("a server does not report its memory"))
        };
        self.servers.iter().map(used).sum()
    }

    pub(super) fn empty(&self) -> Result<(), Refusal> {
        self.servers.iter().try_for_each(|server| server.request(&["FLUSHALL"]).map(|_| ()))
    }

    pub(super) fn version(&self) -> String {
        let reply = self.servers.first().map(|server| server.text(&["INFO", "server"]));
        let reply = reply.and_then(Result::ok).unwrap_or_default();
        let line = reply.lines().find_map(|line| line.strip_prefix("redis_version:"));
        line.unwrap_or("?").to_string()
    }
}

impl Server {
    fn request(&self, command: &[&str]) -> Result<redis::Value, Refusal> {
        let failed = |error: redis::RedisError| {
            Refusal::own(format!("{} to 127.0.0.1:{}: {error}", command.join(" "), self.port))
        };
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port));
        let client = client.map_err(failed)?;
        let mut connection = client.get_connection_with_timeout(TIMEOUT).map_err(failed)?;
        let mut query = redis::cmd(command[0]);
        query.arg(&command[1..]);
        query.query(&mut connection).map_err(failed)
    }

    fn text(&self, command: &[&str]) -> Result<String, Refusal> {
        redis::from_redis_value(self.request(command)?).map_err(Refusal::own)
    }
}

fn server(directory: &Path, port: u16, bus_port: u16, limit: u64) -> Result<Server, Refusal> {
    let log = File::create(directory.join("log")).or_own("a server's log")?;
    let settings = format!(
        "bind 127.0.0.1\nport {port}\ncluster-port {bus_port}\ncluster-enabled yes\n\
         cluster-node-timeout 1000\ncluster-require-full-coverage no\nsave \"\"\nappendonly no\n\
         maxmemory {limit}\nmaxmemory-policy noeviction\n"
    );
    std::fs::write(directory.join("redis.conf"), settings).or_own("a server's settings")?;
    let mut command = Command::new("redis-server");
    command.arg("redis.conf").current_dir(directory).stdin(Stdio::null()).stdout(log);
    let process = command.spawn().map_err(|error| {
        Refusal::own(format!(
            "redis-server cannot be started: {}; install it (Debian: redis-server), or measure \
             an existing cluster with --url",
            plain(&error)
        ))
    })?;
    Ok(Server { process, port })
}

fn free_ports(count: usize) -> std::io::Result<Vec<u16>> {
    let held = (0..count).map(|_| TcpListener::bind("127.0.0.1:0"));
    let held: Vec<_> = held.collect::<Result<_, _>>()?;
    held.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
}

fn eventually(what: &str, mut condition: impl FnMut() -> bool) -> Result<(), Refusal> {
    let start = Instant::now();
    while !condition() {
        if start.elapsed() > TIMEOUT {
            return Err(Refusal::own(format!("{what}: not within {} s", TIMEOUT.as_secs())));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
