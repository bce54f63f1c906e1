//! Compares exported names and types of the header with the code, by a C compiler.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;

fn source() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(file: &str) -> Option<String> {
    let text = std::fs::read_to_string(source().join(file)).ok();
    if text.is_none() {
        println!("skipped: the sources are missing");
    }
    text
}

fn in_c(rust: &str) -> String {
    let rust = rust.trim();
    if let Some(pointee) = rust.strip_prefix("*mut ") {
        return format!("{} *", in_c(pointee));
    }
    if let Some(pointee) = rust.strip_prefix("*const ") {
        return format!("const {} *", in_c(pointee));
    }
    match rust {
        "usize" => "size_t",
        "u64" => "uint64_t",
        "u32" => "uint32_t",
        "c_int" => "int",
        "c_char" => "char",
        "c_void" => "void",
        "softswap_pool" => "softswap_pool",
        "softswap_options" => "struct softswap_options",
        "softswap_stats" => "struct softswap_stats",
        other => panic!("{other}: add its C type to in_c"),
    }
    .into()
}

fn functions(code: &str) -> Vec<(String, String)> {
    let signatures = code.split("#[unsafe(no_mangle)]").skip(1).map(|after| {
        let signature = after.split(" {\n").next().unwrap();
        signature.split_once("fn ").unwrap().1.replace('\n', " ")
    });
    let declarations = signatures.map(|signature| {
        let (name, rest) = signature.split_once('(').unwrap();
        let (parameters, result) = rest.rsplit_once(')').unwrap();
        let types = parameters.split(',').filter_map(|parameter| parameter.split_once(':'));
        let types: Vec<_> = types.map(|(_, rust)| in_c(rust)).collect();
        let types = if types.is_empty() { "void".into() } else { types.join(", ") };
        let result = in_c(result.trim().strip_prefix("->").unwrap());
        (name.to_string(), format!("{result} {name}({types});"))
    });
    declarations.collect()
}

fn fields(code: &str, name: &str) -> Vec<(String, String)> {
    let body = code.split(&format!("pub struct {name} {{")).nth(1).unwrap();
    let lines = body.split('}').next().unwrap().lines().map(str::trim);
    let fields = lines.filter_map(|line| line.strip_prefix("pub ")?.strip_suffix(','));
    let fields = fields.filter_map(|field| field.split_once(": "));
    fields.map(|(field, rust)| (field.into(), in_c(rust))).collect()
}

#[test]
fn header_matches_code() {
    let files = ["src/handles.rs", "src/options.rs", "src/refusal.rs"];
    let Some(code) = files.into_iter().map(read).collect::<Option<String>>() else { return };
    let functions = functions(&code);
    assert!(functions.len() > 10, "{functions:?}");
    let mut program = String::from("#include <softswap.h>\n");
    for (_, declaration) in &functions {
        let _ = writeln!(program, "{declaration}");
    }
    for name in ["softswap_options", "softswap_stats"] {
        let fields = fields(&code, name);
        assert!(fields.len() > 4, "{name}: {fields:?}");
        // Equal order and types imply equal offsets.
        let _ = writeln!(program, "struct {name}_of_the_code {{");
        for (field, kind) in &fields {
            let _ = writeln!(program, "{kind} {field};");
        }
        let _ = writeln!(program, "}};");
        for (field, kind) in &fields {
            let _ = writeln!(
                program,
                "_Static_assert(offsetof(struct {name}, {field}) == \
                 offsetof(struct {name}_of_the_code, {field}), \"{field}\");\n\
                 _Static_assert(_Generic(((struct {name} *)0)->{field}, {kind}: 1, default: 0), \
                 \"{field}\");"
            );
        }
        let size = format!("sizeof(struct {name}) == sizeof(struct {name}_of_the_code)");
        let _ = writeln!(program, "_Static_assert({size}, \"{name}\");");
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("header.c");
    std::fs::write(&file, &program).unwrap();
    let mut command = Command::new("cc");
    command.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"]);
    let Ok(output) = command.arg(source().join("include")).arg(file).output() else {
        println!("skipped: there is no C compiler");
        return;
    };
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{program}");
}

#[test]
fn declared_functions_are_exported() {
    let (Some(header), Some(map)) = (read("include/softswap.h"), read("softswap_c.map")) else {
        return;
    };
    let is_declaration = |line: &&str| line.contains("softswap_") && line.ends_with(");");
    let lines = header.lines().filter(|line| !line.starts_with(['/', ' ', '#']));
    let mut declared: Vec<_> = lines
        .filter(is_declaration)
        .map(|line| line.split('(').next().unwrap().rsplit([' ', '*']).next().unwrap())
        .collect();
    declared.sort_unstable();
    let listed = map.lines().filter_map(|line| line.trim().strip_suffix(';'));
    let listed: Vec<_> = listed.filter(|name| name.starts_with("softswap_")).collect();
    assert_eq!(declared, listed);
    let code: String = ["src/handles.rs", "src/refusal.rs"].into_iter().filter_map(read).collect();
    let mut exported: Vec<_> = functions(&code).into_iter().map(|(name, _)| name).collect();
    exported.sort_unstable();
    assert_eq!(exported, listed);
}
