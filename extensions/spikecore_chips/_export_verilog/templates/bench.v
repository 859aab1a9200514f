// The recorded steps on a simulator of Verilog. Plain numbers with + give fewer of them: +samples=1 +steps=3.
module bench;
    localparam SAMPLES = @samples@, STEPS = @steps@, INPUTS = @count_in@, OUTPUTS = @count_out@;
    reg clk = 0, reset = 1, in_write = 0, step = 0;
    reg [@place_in@-1:0] in_at = 0;
    reg signed [@bits_in@-1:0] in_value = 0;
    reg [@place_out@-1:0] out_at = 0;
    wire done;
    wire signed [@bits_out@-1:0] out_value;
    reg [@bits_in@-1:0] inputs [0:SAMPLES*STEPS*INPUTS-1];
    reg [@bits_out@-1:0] outputs [0:SAMPLES*STEPS*OUTPUTS-1];
    integer sample, t, n, clocks, all, samples, steps, wrong;

    @name@ dut(
        .clk(clk), .reset(reset), .in_write(in_write), .in_at(in_at), .in_value(in_value),
        .step(step), .done(done), .out_at(out_at), .out_value(out_value));

    task tick; begin #1 clk = 1; #1 clk = 0; end endtask

    initial begin
        $readmemh("test/inputs.hex", inputs);
        $readmemh("test/outputs.hex", outputs);
        if (!$value$plusargs("samples=%d", samples)) samples = SAMPLES;
        if (!$value$plusargs("steps=%d", steps)) steps = STEPS;
        all = 0; wrong = 0;
        for (sample = 0; sample < samples; sample = sample + 1) begin
            reset = 1; tick; tick; reset = 0;
            for (t = 0; t < steps; t = t + 1) begin
                for (n = 0; n < INPUTS; n = n + 1) begin
                    in_at = n; in_value = inputs[(sample * STEPS + t) * INPUTS + n];
                    in_write = @zeros@ || in_value != 0; tick;
                end
                in_write = 0; step = 1; tick; step = 0; clocks = 1;
                while (done !== 1 && clocks <= @clocks@) begin tick; clocks = clocks + 1; end
                if (done !== 1) begin
                    $display("@name@: no end of step %0d after @clocks@ clocks", t);
                    $finish_and_return(1);
                end
                all = all + clocks;
                for (n = 0; n < OUTPUTS; n = n + 1) begin
                    out_at = n; tick;
                    if (out_value !== $signed(outputs[(sample * STEPS + t) * OUTPUTS + n])) wrong = wrong + 1;
                end
            end
        end
        $display("@name@: %0d steps, %0d of %0d outputs differ; %0d clocks a step",
            samples * steps, wrong, samples * steps * OUTPUTS, all / (samples * steps));
        $finish_and_return(wrong != 0);
    end
endmodule
