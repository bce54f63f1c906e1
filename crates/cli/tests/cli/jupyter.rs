//! `softswap jupyter` writes, lists and removes kernels for Jupyter.

use crate::common::{assert_refused, json_file, script, softswap};

#[test]
fn jupyter_kernel_runs_under_softswap() {
    let dir = tempfile::tempdir().unwrap();
    // A stand-in for Python: every import succeeds.
    let python = script(dir.path(), "python3.99", "#!/bin/sh\nexit 0\n");
    let mut command = softswap();
    command.env("JUPYTER_DATA_DIR", dir.path()).args(["jupyter", "install", "--memory", "2G"]);
    command.args(["--swap", "/var/tmp:9G", "--python"]).arg(&python).assert().success();
    let kernel = json_file(&dir.path().join("kernels/softswap-2g/kernel.json"));
    assert_eq!(kernel["display_name"], "python3.99 (softswap, 2G)");
    assert_eq!(kernel["interrupt_mode"], "message");
    let line: Vec<&str> =
        kernel["argv"].as_array().unwrap().iter().flat_map(|it| it.as_str()).collect();
    assert_eq!(line[1..6], ["run", "--memory", "2G", "--swap", "/var/tmp:9G"]);
    assert_eq!(line[6..8], ["--", python.to_str().unwrap()]);
    assert_eq!(line[8..], ["-m", "ipykernel_launcher", "-f", "{connection_file}"]);
    let mut elsewhere = softswap();
    elsewhere.args(["jupyter", "install", "--memory", "1G", "--name", "mine", "--prefix"]);
    elsewhere.arg(dir.path()).arg("--python").arg(&python).assert().success();
    let mine = dir.path().join("share/jupyter/kernels/mine");
    assert!(mine.join("kernel.json").exists());
    // Another program's kernel is neither listed nor removed.
    let other = mine.with_file_name("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("kernel.json"), r#"{"argv": ["python3", "run"]}"#).unwrap();
    let asked = |words: &[&str]| {
        let mut command = softswap();
        command.arg("jupyter").args(words).arg("--prefix").arg(dir.path());
        command
    };
    asked(&["list"]).assert().success().stdout("mine\n");
    assert_refused(&mut asked(&["remove", "other"]), 2, &["other", "softswap jupyter list"]);
    assert_refused(&mut asked(&["remove", "../kernels/mine"]), 2, &["no kernel"]);
    asked(&["remove", "mine"]).assert().success();
    assert!(!mine.exists() && other.exists());
}

#[test]
fn invalid_jupyter_kernel_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let bare = script(dir.path(), "bare", "#!/bin/sh\nexit 1\n");
    let install = |memory: &str, name: &str| {
        let mut command = softswap();
        command.env("JUPYTER_DATA_DIR", dir.path()).arg("jupyter").arg("install");
        command.args(["--memory", memory, "--name", name, "--python"]).arg(&bare);
        command
    };
    assert_refused(&mut install("lots", "a"), 2, &["--memory lots", "not a size"]);
    assert_refused(&mut install("1G", "../a"), 2, &["--name ../a", "letters"]);
    assert_refused(&mut install("1M", "a"), 2, &["--memory 1M", "too little"]);
    for (area, parts) in [
        ("redis://u:hunter2@h?size=1G", ["--swap redis://u:...@h", "password"]),
        ("/var/tmp,poll=never", ["--swap /var/tmp,poll=never", "never"]),
    ] {
        assert_refused(install("1G", "a").args(["--swap", area]), 2, &parts);
    }
    let parts = ["bare", "no ipykernel", "pip install", "--python"];
    assert_refused(&mut install("1G", "a"), 2, &parts);
    assert!(!dir.path().join("kernels").exists());
}
