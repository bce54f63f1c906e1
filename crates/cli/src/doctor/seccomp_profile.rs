//! Extends a container runtime's seccomp profile by system calls that make softswap faster.

use crate::refusal::{Refusal, plain};
use clap::ValueEnum;
use serde_json::{Value, json};
use std::fs;
use std::io::{self, Read};
use std::path::Path;

/// System calls that default profiles refuse, or allow only with a capability.
const WANTED: [&str; 5] =
    ["io_uring_enter", "io_uring_register", "io_uring_setup", "process_madvise", "userfaultfd"];
const ALLOW: &str = "SCMP_ACT_ALLOW";
/// Default profiles for Podman, Buildah and CRI-O: the administrator's, then the package's.
const CONTAINERS_COMMON: [&str; 2] =
    ["/etc/containers/seccomp.json", "/usr/share/containers/seccomp.json"];

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Runtime {
    Docker,
    Podman,
    Kubernetes,
}

impl Runtime {
    fn defaults(self) -> &'static [&'static str] {
        match self {
            Runtime::Docker => &[],
            Runtime::Podman | Runtime::Kubernetes => &CONTAINERS_COMMON,
        }
    }

    fn source(self) -> String {
        let of_moby = "\n  curl -fsSLO https://raw.githubusercontent.com/moby/profiles/main/seccomp/default.json\n  \
                       softswap doctor --profile";
        let from = "--from default.json > softswap.json";
        match self {
            Runtime::Docker => format!(
                "--profile docker: Docker installs no file with its default profile. Download it \
                 and pass it with --from:{of_moby} docker {from}"
            ),
            Runtime::Podman => format!(
                "--profile podman: there is no {}; on the host the package containers-common \
                 (golang-github-containers-common in Debian) installs it. Copy it from there and \
                 pass the copy with --from FILE",
                CONTAINERS_COMMON.join(" and no ")
            ),
            Runtime::Kubernetes => format!(
                "--profile kubernetes: there is no {}, which CRI-O uses. containerd installs no \
                 file with its default profile, which is close to Docker's. Download Docker's and \
                 pass it with --from:{of_moby} kubernetes {from}",
                CONTAINERS_COMMON.join(" and no ")
            ),
        }
    }

    pub(super) fn usage(self) -> &'static str {
        match self {
            Runtime::Docker => "docker run --security-opt seccomp=softswap.json ...",
            Runtime::Podman => "podman run --security-opt seccomp=softswap.json ...",
            Runtime::Kubernetes => {
                "on each node: /var/lib/kubelet/seccomp/softswap.json; in the pod: securityContext: \
                 {seccompProfile: {type: Localhost, localhostProfile: softswap.json}}"
            }
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Runtime::Docker => "docker",
            Runtime::Podman => "podman",
            Runtime::Kubernetes => "kubernetes",
        }
    }
}

pub(super) struct Profile {
    pub(super) json: String,
    pub(super) note: String,
}

/// Extends the runtime's default from `file` (`-` is standard input), or the installed one.
pub(super) fn make(runtime: Runtime, file: Option<&Path>) -> Result<Profile, Refusal> {
    let installed = || runtime.defaults().iter().map(Path::new).find(|path| path.exists());
    let file = file.or_else(installed).ok_or_else(|| Refusal::usage(runtime.source()))?;
    let text = match file.as_os_str().as_encoded_bytes() {
        b"-" => read(io::stdin()),
        _ => fs::File::open(file).and_then(read),
    };
    let refuse = |why: String| Refusal::usage(format!("the profile {}: {why}", file.display()));
    let text = text.map_err(|error| refuse(format!("it cannot be read: {}", plain(&error))))?;
    let mut profile = serde_json::from_str(&text).map_err(|error| refuse(error.to_string()))?;
    let added = allow(&mut profile).map_err(refuse)?;
    let json = serde_json::to_string_pretty(&profile).map_err(Refusal::own)?;
    let added = match added.as_slice() {
        [] => "no call had to be added".to_string(),
        names => format!("added {}", names.join(", ")),
    };
    let note = format!("softswap: {}: {added}\nsoftswap: {}\n", file.display(), runtime.usage());
    Ok(Profile { json, note })
}

fn read(file: impl Read) -> io::Result<String> {
    /// Usual profiles have about 20 KiB.
    const MAX_BYTES: u64 = 4 << 20;
    let text = io::read_to_string(file.take(MAX_BYTES + 1))?;
    match text.len() as u64 > MAX_BYTES {
        true => Err(io::Error::other("it is larger than 4 MiB, so it is not a seccomp profile")),
        false => Ok(text),
    }
}

/// Returns the calls that were not allowed before.
fn allow(profile: &mut Value) -> Result<Vec<&'static str>, String> {
    let default = profile["defaultAction"].as_str().map(String::from);
    let rules = profile.get_mut("syscalls").and_then(Value::as_array_mut);
    let (Some(default), Some(rules)) = (default, rules) else {
        return Err(
            "it is not a seccomp profile: it has no `defaultAction` or no list `syscalls`".into()
        );
    };
    // Convert the older form of a rule, for a single call, to a list.
    for rule in rules.iter_mut().filter_map(Value::as_object_mut) {
        if let Some(name) = rule.remove("name") {
            rule.entry("names").or_insert_with(|| json!([name]));
        }
    }
    let is_refused = |name: &&str| {
        let mut of_it = rules.iter().filter(|rule| names(rule).any(|it| it == *name)).peekable();
        let is_named = of_it.peek().is_some();
        !of_it.any(always_allows) && (is_named || default != ALLOW)
    };
    let refused: Vec<&str> = WANTED.into_iter().filter(is_refused).collect();
    rules.retain_mut(|rule| {
        let is_allowing = rule["action"] == ALLOW;
        let of_rule = rule.get_mut("names").and_then(Value::as_array_mut);
        let Some(of_rule) = of_rule.filter(|_| !is_allowing) else {
            return true;
        };
        let before = of_rule.len();
        of_rule.retain(|name| !refused.iter().any(|it| name == it));
        of_rule.len() == before || !of_rule.is_empty()
    });
    // A rule must not repeat the default action.
    if default != ALLOW && !refused.is_empty() {
        rules.push(json!({ "names": refused, "action": ALLOW }));
    }
    Ok(refused)
}

fn names(rule: &Value) -> impl Iterator<Item = &str> {
    rule["names"].as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// True if the rule holds regardless of arguments, capabilities and processor.
fn always_allows(rule: &Value) -> bool {
    let is_empty = |key: &str| match &rule[key] {
        Value::Array(items) => items.is_empty(),
        Value::Object(conditions) => {
            conditions.values().all(|it| it.as_array().is_some_and(Vec::is_empty))
        }
        other => other.is_null(),
    };
    rule["action"] == ALLOW && ["args", "includes", "excludes"].into_iter().all(is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> Value {
        json!({
            "defaultAction": "SCMP_ACT_ERRNO",
            "defaultErrnoRet": 38,
            "architectures": ["SCMP_ARCH_X86_64"],
            "syscalls": [
                { "names": ["userfaultfd", "bdflush"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1 },
                { "names": ["io_uring_enter"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1 },
                { "names": ["read", "io_uring_setup"], "action": ALLOW, "args": [], "includes": {} },
                {
                    "names": ["process_madvise"],
                    "action": ALLOW,
                    "includes": { "caps": ["CAP_SYS_PTRACE"] }
                },
                {
                    "names": ["personality"],
                    "action": ALLOW,
                    "args": [{ "index": 0, "value": u64::MAX, "op": "SCMP_CMP_EQ" }]
                }
            ]
        })
    }

    #[test]
    fn profile_adds_refused_calls_only() {
        let mut changed = profile();
        let added = allow(&mut changed).unwrap();
        assert_eq!(
            added,
            ["io_uring_enter", "io_uring_register", "process_madvise", "userfaultfd"]
        );
        let mut expected = profile();
        let rules = expected["syscalls"].as_array_mut().unwrap();
        rules[0]["names"] = json!(["bdflush"]);
        rules.remove(1);
        rules.push(json!({ "names": added, "action": ALLOW }));
        assert_eq!(changed, expected);
        assert_eq!(allow(&mut changed).unwrap(), [""; 0]);
        assert_eq!(changed, expected);
    }

    #[test]
    fn calls_are_removed_from_deny_list() {
        let rule = json!({ "names": ["userfaultfd", "mount"], "action": "SCMP_ACT_KILL" });
        let mut profile = json!({ "defaultAction": ALLOW, "syscalls": [rule] });
        assert_eq!(allow(&mut profile).unwrap(), ["userfaultfd"]);
        let rule = json!({ "names": ["mount"], "action": "SCMP_ACT_KILL" });
        assert_eq!(profile, json!({ "defaultAction": ALLOW, "syscalls": [rule] }));
    }

    #[test]
    fn single_call_rules_are_parsed() {
        let rule = |name: &str, action: &str| json!({ "name": name, "action": action });
        let rules = [rule("userfaultfd", "SCMP_ACT_ERRNO"), rule("process_madvise", ALLOW)];
        let mut profile = json!({ "defaultAction": ALLOW, "syscalls": rules });
        assert_eq!(allow(&mut profile).unwrap(), ["userfaultfd"]);
        let rule = json!({ "names": ["process_madvise"], "action": ALLOW });
        assert_eq!(profile, json!({ "defaultAction": ALLOW, "syscalls": [rule] }));
    }

    #[test]
    fn overlong_profile_is_rejected() {
        assert!(read(io::repeat(b' ')).unwrap_err().to_string().contains("4 MiB"));
        assert_eq!(read(&b"{}"[..]).unwrap(), "{}");
    }

    #[test]
    fn profile_without_rules_is_rejected() {
        for other in [json!([]), json!({}), json!({ "defaultAction": ALLOW }), json!(7)] {
            assert!(allow(&mut other.clone()).unwrap_err().contains("syscalls"), "{other}");
        }
    }
}
