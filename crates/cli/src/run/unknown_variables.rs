//! Notes about variables in the environment that look like settings but are none.

use crate::library;
use crate::refusal::Refusal;
use softswap_engine::api::settings::ENV_PREFIX;
use softswap_remote::secret;
use softswap_sys::control_socket;
use std::env::VarError;
use std::ffi::OsString;

/// Beginnings of names after `SOFTSWAP_` in softswap's tests and scripts.
const OF_TESTS: [&str; 16] = [
    "ABI_",
    "ADVERSARY_SECONDS",
    "ALONE",
    "BIN_DIR",
    "FAULTS_",
    "FUZZ_",
    "POOLS_ALONE",
    "RAW_",
    "REDIS_SERVER",
    "SOURCE_DIR",
    "TEST_",
    "TRANSFERS_FAULTS",
    "TREE_TURNS",
    "TURNS_",
    "WRITE_API",
    "WRITE_REFERENCE",
];

pub(super) fn variable_of(name: &str) -> String {
    format!("SOFTSWAP_{}", name.to_ascii_uppercase())
}

/// A value that is not text would count as unset.
pub(super) fn check_variables<'n>(names: impl Iterator<Item = &'n str>) -> Result<(), Refusal> {
    for variable in names.map(variable_of) {
        if let Err(VarError::NotUnicode(value)) = std::env::var(&variable) {
            let value = value.to_string_lossy();
            return Err(Refusal::usage(format!(
                "{variable}={value}: the value is not UTF-8; unset it, or use another path"
            )));
        }
    }
    Ok(())
}

pub(super) fn unknown_variables(
    options: &[clap::Arg],
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> Vec<String> {
    let of_option = |option: &clap::Arg| variable_of(option.get_id().as_str());
    let others = [library::VARIABLE, control_socket::DIR_VARIABLE, secret::VARIABLE];
    let known: Vec<String> =
        options.iter().map(of_option).chain(others.map(str::to_string)).collect();
    let note = |name: OsString| {
        let name = name.to_str()?;
        let end = name.strip_prefix("SOFTSWAP_")?;
        // softswap passes these to programs, and another softswap may inherit them.
        let is_own = name.starts_with(ENV_PREFIX) || OF_TESTS.iter().any(|it| end.starts_with(it));
        if is_own || known.iter().any(|known| known == name) {
            return None;
        }
        let distance = |known: &String| strsim::damerau_levenshtein(known, name);
        let is_near = |known: &String| {
            let is_longer = known.starts_with(name) || name.starts_with(known.as_str());
            end.len() >= 3 && (is_longer || distance(known) * 3 <= end.len())
        };
        let nearest = known.iter().filter(|known| is_near(known)).min_by_key(|it| distance(it));
        let remedy = match nearest {
            Some(nearest) => format!("did you mean {nearest}?"),
            None => "`softswap run --help` lists the settings".to_string(),
        };
        Some(format!("softswap does not know the variable {name}; {remedy}"))
    };
    variables.filter_map(|(name, _)| note(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::options::options;

    #[test]
    fn unknown_variable_is_reported() {
        let noted =
            |name: &str| unknown_variables(&options(), [(name.into(), "1".into())].into_iter());
        let help = "`softswap run --help` lists the settings";
        for (name, remedy) in [
            ("SOFTSWAP_MEMROY", "did you mean SOFTSWAP_MEMORY?"),
            ("SOFTSWAP_MEM", "did you mean SOFTSWAP_MEMORY?"),
            ("SOFTSWAP_MEMORY_LIMIT", "did you mean SOFTSWAP_MEMORY?"),
            ("SOFTSWAP_SWAP_DIR", "did you mean SOFTSWAP_SWAP?"),
            ("SOFTSWAP_BUDGET", help),
            ("SOFTSWAP_FOO", help),
        ] {
            let note = format!("softswap does not know the variable {name}; {remedy}");
            assert_eq!(noted(name), [note]);
        }
        for name in [
            "PATH",
            "SOFTSWAP_REMOTE_PASSWORD",
            "SOFTSWAP_AWAKE",
            "SOFTSWAP_WITHOUT",
            "SOFTSWAP_TREE_TURNS",
            "SOFTSWAP_MEMORY",
            "SOFTSWAP_NO_MOVE",
            "SOFTSWAP_LIBRARY",
            "SOFTSWAP_BIN_DIR",
            "SOFTSWAP_RT_ENCRYPT",
        ] {
            assert!(noted(name).is_empty(), "{name}");
        }
    }
}
