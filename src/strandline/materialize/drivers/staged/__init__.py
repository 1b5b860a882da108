"""What drivers share that stage files and apply them once the runtime's log has committed their names (pattern 3).

`session` is the conversation, `driver` the unary calls, `work` what a state names, `applying` the idempotent apply.  A
format of tables implements `table.Table` and `table.Lake`.
"""
